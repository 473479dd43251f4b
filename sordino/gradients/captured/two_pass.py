"""Two passes in place of memory: each layer's (a, g) is used when the backward pass reaches it, and dropped.

The first pass measures, the second sums; between them nothing is kept but the norms, so activation checkpointing
saves what it is meant to save. Both passes start from the same random state and compute the same tensors, so the
norms are those of what is summed. Parameters used more than once wait for their last use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from sordino.door.vectors import Grads, accumulation_dtype
from sordino.gradients.batch import arguments, size
from sordino.gradients.captured.graph import one_loss_each, recorded_only
from sordino.gradients.captured.options import PerformanceOptions
from sordino.gradients.captured.plan import Plan, installed
from sordino.gradients.captured.result import buffers
from sordino.gradients.captured.tape import Mode, Tape
from sordino.gradients.captured.use import Use
from sordino.gradients.formulas.compound import joined
from sordino.gradients.formulas.part import Part, full_precision
from sordino.gradients.protocol import LossFn, Norms, trainable


@dataclass
class Streamed:
    """A `PerSample` that runs the model again for every question but the first."""

    losses: Tensor
    _norms: Norms
    _again: Callable[[Callable[[int, Part], None]], Tensor]
    _like: list[nn.Parameter]
    _plan: Plan
    _options: PerformanceOptions = field(default_factory=PerformanceOptions)
    inner: Tensor | None = None  # ⟨g_i, θ⟩, if asked for

    def norms(self) -> Norms:
        """From the first pass."""
        return self._norms

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Another pass."""
        found = torch.zeros_like(self._norms.squared)

        def take(column: int, part: Part) -> None:
            name = self._plan.names[column]
            if name in u:
                found[:, column] += part.dot(u[name].detach())

        self._again(take)
        return found

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """The second pass."""
        total = into
        if total is None:
            total = buffers(self._plan.names, self._like, self._plan.pool)
            torch._foreach_zero_(list(total.values()))
        room = total
        finite = self._norms.squared.isfinite().all(dim=1)
        whole = bool(finite.all())

        def take(column: int, part: Part) -> None:
            w = weights[:, column if weights.shape[1] > 1 else 0]
            kept = part if whole else part.without((w == 0) & ~finite)
            kept.add_to(room[self._plan.names[column]], w)

        self._again(take)
        return total


def streamed(
    plan: Plan,
    model: nn.Module,
    modules: list[nn.Module],
    loss_fn: LossFn,
    batch: Any,
    options: PerformanceOptions,
    scale: Tensor | None = None,
    inner: bool = False,
) -> Streamed:
    """The first pass, and the means for the second."""
    like = list(trainable(model).values())
    devices = sorted({p.device.index for p in like if p.device.type == "cuda" and p.device.index is not None})
    state = torch.get_rng_state(), [torch.cuda.get_rng_state(d) for d in devices]

    def again(take: Callable[[int, Part], None]) -> Tensor:
        with torch.random.fork_rng(devices):
            torch.set_rng_state(state[0])
            for device, one in zip(devices, state[1], strict=True):
                torch.cuda.set_rng_state(one, device)
            return _pass(plan, model, modules, loss_fn, batch, scale, take)

    columns = [p.new_zeros(size(batch), dtype=accumulation_dtype(p.dtype)) for p in like]
    waiting: dict[int, list[Part]] = {}
    uses: dict[int, int] = {}
    products = torch.zeros(size(batch), len(like), dtype=torch.float64, device=like[0].device) if inner else None

    def measure(column: int, part: Part) -> None:
        uses[column] = uses.get(column, 0) + 1
        if products is not None:
            products[:, column] += part.dot(like[column].detach())
        if column in plan.single:
            columns[column] = part.squared(options)
        else:  # the norm of a sum has cross terms: wait for all uses
            waiting.setdefault(column, []).append(part)

    losses = _pass(plan, model, modules, loss_fn, batch, scale, measure)
    surprises = plan.single - {column for column, n in uses.items() if n == 1}
    plan.single = frozenset(column for column, n in uses.items() if n == 1)
    if any(uses.get(column, 0) > 1 for column in surprises):  # measured as if used once: measure again
        uses.clear()
        waiting.clear()
        if products is not None:
            products.zero_()
        again(measure)
    with torch.no_grad(), full_precision(losses.device):
        for column, parts in waiting.items():
            columns[column] = joined(parts).squared(options)
    return Streamed(losses, Norms(torch.stack(columns, 1), plan.names), again, like, plan, options, products)


def _pass(
    plan: Plan,
    model: nn.Module,
    modules: list[nn.Module],
    loss_fn: LossFn,
    batch: Any,
    scale: Tensor | None,
    take: Callable[[int, Part], None],
) -> Tensor:
    tape = Tape(size(batch), Mode.STREAM, plan.trainable, plan.layouts or {}, plan.channels_last)

    def sink(use: Use, g: Tensor) -> None:
        tape.idle = True
        try:
            with torch.no_grad(), full_precision(g.device):
                for p, part in use.resolve(g).items():
                    take(plan.columns[id(p)], part)
        finally:
            tape.idle = False

    tape.sink = sink
    with torch.enable_grad(), installed(plan, modules, tape):
        losses = one_loss_each(loss_fn(model, *arguments(batch)), tape.size)
        tape.closed = True
        if losses.requires_grad:
            recorded_only(losses, plan.columns, plan.names)
            upstream = torch.ones_like(losses) if scale is None else scale.to(losses)
            torch.autograd.grad(losses, [tape.path], upstream, allow_unused=True)  # unused: no recorded layer at all
    return losses.detach()
