"""Exact per-sample gradients at nearly the price of plain training: book-keeping with a pruned backward pass.

One forward pass records every use of a trainable parameter: the layer's input a and the place of its output in the
graph. One backward pass of the summed loss gives the gradient g at those places and nothing else; no parameter gradient
is computed, `.grad` is not touched. Norms follow from (a, g), by whichever of several formulas is fastest for a layer's
shape, and the same (a, g) give the weighted sum: no second backward pass (Bu et al. 2023; Lee & Kifer 2021).

    per sample, in forward passes: non-private 2.75, this 3.25, Opacus 3.8, two-pass ghost clipping 5

The engine never guesses. Which dimension counts samples is found by running the model's first batch at two sizes; the
norms and the sum of three samples are compared with autograd's before a model is trusted; a use of a parameter that
nobody recorded is refused by name.

Privacy: the norms bound what a sample contributes only if they are those of the gradients summed. Both come from the
same (a, g), in float32 at least, and samples whose norm is not finite contribute nothing at weight 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sordino.gradients import check
from sordino.gradients.batch import arguments, rows_of, size, tensors
from sordino.gradients.captured.backward import Surprise, gather
from sordino.gradients.captured.graph import one_loss_each, recorded_only
from sordino.gradients.captured.keep_budget import Purse
from sordino.gradients.captured.options import PerformanceOptions
from sordino.gradients.captured.plan import Plan, forget_plans, installed, known_sample_bytes, plan_of, way_of
from sordino.gradients.captured.result import Inner, Taken
from sordino.gradients.captured.tape import Checkpointed, Mode, Tape
from sordino.gradients.captured.two_pass import streamed
from sordino.gradients.first_batch import stopwatch as tune
from sordino.gradients.first_batch.settle import settle
from sordino.gradients.inventory import modules_of
from sordino.gradients.protocol import LossFn, Norms, PerSample, trainable
from sordino.refusal import Refusal


@dataclass(frozen=True)
class Captured:
    """The fast backend.

    Example:
        >>> model = nn.Linear(3, 1)
        >>> grads = Captured().per_sample(model, lambda m, x: m(x).square().sum(1), (torch.ones(4, 3),))
        >>> grads.norms().squared.shape
        torch.Size([4, 2])

    """

    options: PerformanceOptions = field(default_factory=PerformanceOptions)
    inner: bool = False
    """Find the inner products of the gradients with their parameters too, for a penalty inside the clip."""

    def per_sample(self, model: nn.Module, loss_fn: LossFn, batch: Any) -> PerSample:
        """Forward and pruned backward; norms and sums are computed when asked for."""
        inputs = tensors(batch)
        b = rows_of(inputs)
        modules = modules_of(model)
        plan = plan_of(model, way_of(model, loss_fn, inputs))
        like = plan.like
        check.statistics(model, modules)
        if not like:
            raise Refusal("the model has no trainable parameter; need at least one; set requires_grad")
        if not b:
            return Taken(like[0].new_zeros(0), [None] * len(like), plan.names, like, Purse(self.options), plan.pool)
        if plan.layouts is None or not plan.trusted:
            settle(plan, model, modules, loss_fn, batch, self.options, captured)
        if plan.stream or self.options.two_pass:
            return streamed(plan, model, modules, loss_fn, batch, self.options, inner=self.inner)
        try:
            return captured(plan, model, modules, loss_fn, batch, self.options, products=self.inner, b=b)
        except Checkpointed:
            plan.stream = True
            return streamed(plan, model, modules, loss_fn, batch, self.options, inner=self.inner)

    def norms(
        self, model: nn.Module, loss_fn: LossFn, data: Dataset[Any] | Iterable[Any], chunk: int | None = None
    ) -> Norms:
        """The norms of every sample of a dataset, or of an iterable of batches; nothing else is computed or kept.

        A dataset is read `chunk` samples at a time; None: few enough for what they take to stay in the cache.

        Example:
            >>> data = torch.utils.data.TensorDataset(torch.ones(10, 3))
            >>> Captured().norms(nn.Linear(3, 1), lambda m, x: m(x).square().sum(1), data, chunk=4).squared.shape
            torch.Size([10, 2])

        """
        if isinstance(data, Dataset):
            data = _batches(data, lambda: chunk or _cached(known_sample_bytes(model)))
        found = [self.per_sample(model, loss_fn, batch).norms() for batch in data]
        if not found:
            names = tuple(trainable(model))
            return Norms(torch.zeros(0, len(names)), names)
        return Norms(torch.cat([n.squared for n in found]), found[0].names)

    def sample_bytes(self, model: nn.Module) -> int:
        """What a sample took on the first batch; before that, a guess from the parameters."""
        guess = max(1 << 12, sum(p.numel() for p in trainable(model).values()) // 8)
        return known_sample_bytes(model) or guess

    def state_dict(self) -> dict[str, Any]:
        """The formulas and memory formats that were measured to be fastest, as JSON.

        They differ in rounding only, but a stopwatch may decide otherwise in the next process, so a run that is to
        resume bit-equal takes them along. They belong to the process, not to this object; where nothing is measured
        there are none, whatever others in the process measured.
        """
        return {"choices": tune.choices() if self.options.measure else {}}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with saved choices in place of measuring; models met before are looked at again."""
        if self.options.measure:
            tune.restore(state["choices"])
            forget_plans()


_CACHE = 1 << 24
_LEAST, _MOST = 64, 256  # enough to keep the layers busy; more gain nothing


def _cached(sample: int) -> int:
    """So many samples that what they take fits a cache; `sample` is 0 before the first."""
    return max(_LEAST, min(_MOST, _CACHE // sample)) if sample else _LEAST


def _batches(data: Dataset[Any], chunk: Callable[[], int]) -> Iterator[Any]:
    if type(data) is not TensorDataset:
        yield from DataLoader(data, chunk())
        return
    begin = 0
    while begin < len(data):
        end = begin + chunk()
        yield tuple(column[begin:end] for column in data.tensors)
        begin = end


def captured(
    plan: Plan,
    model: nn.Module,
    modules: list[nn.Module],
    loss_fn: LossFn,
    batch: Any,
    options: PerformanceOptions,
    scale: Tensor | None = None,
    products: bool = False,
    b: int | None = None,
) -> Taken:
    """One pass; `scale` multiplies each sample's loss; `products` asks for ⟨g_i, θ⟩ as well."""
    like = plan.like
    b = size(batch) if b is None else b
    tape = Tape(b, Mode.KEEP, plan.trainable, plan.layouts or {}, plan.channels_last, products)
    with torch.enable_grad(), installed(plan, modules, tape):
        losses = one_loss_each(loss_fn(model, *arguments(batch)), b)
    inner = Inner([None] * len(like)) if products else None
    if not losses.requires_grad:
        return Taken(losses.detach(), [None] * len(like), plan.names, like, Purse(options), plan.pool, inner)
    nodes = recorded_only(losses, plan.columns, plan.names)
    uses = [use for use in tape.uses if use.edge.node in nodes]
    tape.uses.clear()  # rules hold the tape: without this, inputs would live until the next garbage collection
    if not uses:
        return Taken(losses.detach(), [None] * len(like), plan.names, like, Purse(options), plan.pool, inner)
    if not plan.sample_bytes:
        plan.sample_bytes = max(1, sum(use.bytes + sum(t.nbytes for t in use.saved) for use in uses) // b)
    upstream = plan.ones(losses) if scale is None else scale.to(losses)
    try:
        found = gather(plan, uses, losses, upstream, options, len(like), inner)
    except Surprise:
        return captured(plan, model, modules, loss_fn, batch, options, scale, products, b)
    squares = found.squares if found.measured else None
    return Taken(losses.detach(), found.parts, plan.names, like, found.purse, plan.pool, inner, squares)
