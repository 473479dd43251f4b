"""The engine's entry point: exact per-sample gradients at nearly the price of plain training.

One forward pass records every use of a trainable parameter: the layer's input a and the place of its output in the
graph. One backward pass of the summed loss gives the gradient g at those places and nothing else; no parameter gradient
is computed, `.grad` is not touched. Norms follow from (a, g), by whichever of several formulas is fastest for a layer's
shape, and the same (a, g) give the weighted sum: no second backward pass is needed (book-keeping: Bu et al. 2023,
arXiv:2210.00038; Lee & Kifer 2021, arXiv:2009.03106).

    per sample, in forward passes: non-private 2.75, this 3.25, Opacus 3.8, two-pass ghost clipping 5

The engine never guesses. Which dimension counts samples is found by running the model's first batch at two sizes; the
norms and the sum of three samples are compared with autograd's before a model is trusted; a use of a parameter that
nobody recorded is refused by name.

Privacy: the norms bound what a sample contributes only if they are those of the gradients summed. Both come from the
same (a, g), in float32 at least, and samples whose norm is not finite contribute nothing at weight 0.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sordino.distributed.layer_by_layer import is_layer_by_layer, keep_gathered
from sordino.per_sample import model_checks
from sordino.per_sample.batch_structure import count_rows, list_tensors
from sordino.per_sample.compiled_models import Compiler
from sordino.per_sample.engine.compiled_passes import CompiledPasses
from sordino.per_sample.engine.module_plan import Plans
from sordino.per_sample.engine.session import Session
from sordino.per_sample.engine.two_pass import run_two_passes
from sordino.per_sample.first_batch.learn_model import find_layouts_again, learn_from_first_batch
from sordino.per_sample.formulas.formula_timing import Stopwatch
from sordino.per_sample.formulas.workspace import Workspace
from sordino.per_sample.model_inventory import Inventory, find_spectral_vectors, keep_vectors
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.protocol import Backend, LossFn, Norms, PerSample, trainable_parameters
from sordino.per_sample.recording.sample_layout import NOTHING_KNOWN, OtherLength, UnseenCall
from sordino.per_sample.recording.tape import Checkpointed
from sordino.refusal import Refusal
from sordino.rng.global_generators import TorchState, preserve_generators


@dataclass(frozen=True)
class Captured:
    """The default backend: exact per-sample gradients from one forward and one pruned backward pass.

    Examples:
        >>> model = nn.Linear(3, 1)
        >>> grads = Captured().per_sample(model, lambda m, x: m(x).square().sum(1), (torch.ones(4, 3),))
        >>> grads.norms().squared.shape
        torch.Size([4, 2])

    """

    options: PerformanceOptions = field(default_factory=PerformanceOptions)
    inner: bool = False
    """Whether to find the inner products of the gradients with their parameters too, for a penalty inside the clip."""
    _plans: Plans = field(init=False, repr=False, compare=False, default_factory=Plans)
    _workspace: Workspace = field(init=False, repr=False, compare=False)
    _compiled: CompiledPasses | None = field(init=False, repr=False, compare=False, default=None)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_workspace", Workspace(Stopwatch(self.options.measure)))

    def __reduce__(self) -> tuple[type[Captured], tuple[PerformanceOptions, bool]]:
        """Returns how to rebuild this backend; a copy knows no model yet."""
        return Captured, (self.options, self.inner)

    def per_sample(self, model: nn.Module, loss_fn: LossFn, batch: Any) -> PerSample:
        """Runs the forward and pruned backward pass; norms and sums are computed when asked for."""
        return self.compute_for_inventory(Inventory(model), loss_fn, batch)

    def compile_passes(self, model: nn.Module, rows: int, compiler: Compiler) -> None:
        """Compiles the captured backend's passes over batches of exactly `rows` samples of a model, from here on; others
        run eagerly.

        A penalty inside the clip needs outputs that compiled passes do not keep, and stays eager.
        """
        if not self.inner:
            object.__setattr__(self, "_compiled", CompiledPasses(model, rows, compiler))

    def for_pass(self, inventory: Inventory) -> Backend:
        """Returns a backend for the batches of one pass over a lot, which lists the model's modules only once."""
        return _OnePass(self, inventory)

    def compute_for_inventory(self, inventory: Inventory, loss_fn: LossFn, batch: Any) -> PerSample:
        """Computes the per-sample gradients of one batch by the captured backend, learning the model first where it is
        not known yet.
        """
        # Find what is known of this model with this loss and this kind of input.
        inputs = list_tensors(batch)
        b = count_rows(inputs)
        plan = self._plans.find_or_make_plan(inventory, loss_fn, inputs)
        session = Session(inventory, loss_fn, plan, self.options, self._workspace)
        model_checks.refuse_batch_statistics(session.model, session.modules)
        # Refuse what cannot be trained, and answer for an empty batch without running the model.
        if not plan.structure.parameters:
            raise Refusal(
                "the model has no trainable parameter.\n"
                "There is nothing to take gradients of.\n"
                "Set requires_grad on at least one."
            )
        if not b:
            return session.make_empty_result(plan.structure.parameters[0].new_zeros(0))
        # A model that was not compared with autograd yet is learned from this batch.
        if plan.learned.layouts is None or not plan.learned.trusted:
            _learn_model(session, batch)
        # Layouts and usage may depend on the lengths of the inputs; take those that belong to this batch.
        by_shapes = not self.options.measure
        if by_shapes or plan.has_layouts_by_lengths:
            plan.select_lengths(tuple([t.shape[1:] for t in inputs]), also_usage=by_shapes)
        # Run the passes. What a batch does differently from those before is learned, and the passes are made again from
        # the same state of the random generators, so that nothing depends on how often that happened.
        initial_rng = session.capture_rng()  # a pass that is made again draws the same
        try:
            return self._run_passes(session, batch, b, initial_rng)
        except OtherLength:  # as many rows per sample as tokens, and another number of tokens
            lengths = tuple([t.shape[1:] for t in inputs])
            initial_rng.restore()
            plan.learn_layouts_of_lengths(lengths, find_layouts_again(session, batch))
            return self._run_passes(session, batch, b, initial_rng)
        except UnseenCall:  # a layer that earlier batches had no use for: look at the model again, on this one
            initial_rng.restore()
            before = plan.learned.layouts or NOTHING_KNOWN
            _learn_model(session, batch)
            plan.learn(layouts=(plan.learned.layouts or NOTHING_KNOWN).with_defaults(before))
            return self._run_passes(session, batch, b, initial_rng)

    def _run_passes(self, session: Session, batch: Any, b: int, initial_rng: TorchState) -> PerSample:
        """Runs the captured backend's engine in one pass, or in two where the model checkpoints activations or the
        options ask for it.
        """
        plan, compiled = session.plan, self._compiled
        if compiled is not None and compiled.apply_to(session, b):
            try:
                if not (plan.learned.needs_two_passes or self.options.two_pass):
                    return compiled.run(session, batch, initial_rng)
            except Checkpointed:
                pass
            raise Refusal(
                "a compiled model checkpoints activations, or two_pass=True was given.\n"
                "A compiled pass keeps all activations, so neither would save memory.\n"
                "Switch it off, or pass the model as it was before torch.compile."
            )
        # A model that was seen to checkpoint its activations always runs in two passes.
        if plan.learned.needs_two_passes:
            _refuse_recomputed_layers()
        if plan.learned.needs_two_passes or self.options.two_pass:
            return run_two_passes(session, batch, products=self.inner)
        # One pass first. A checkpointed model shows itself when its layers run a second time during the backward pass.
        try:
            return session.run_passes(batch, products=self.inner, b=b, initial_rng=initial_rng)
        except Checkpointed:
            _refuse_recomputed_layers()
            plan.learn(needs_two_passes=True)
            return run_two_passes(session, batch, products=self.inner)

    def norms(
        self, model: nn.Module, loss_fn: LossFn, data: Dataset[Any] | Iterable[Any], chunk: int | None = None
    ) -> Norms:
        """Returns by the captured backend the norms of every sample of a dataset, or of an iterable of batches, and
        keeps nothing else.

        A dataset is read `chunk` samples at a time; with None, few enough for what is kept of them to stay in the
        cache.

        Examples:
            >>> data = torch.utils.data.TensorDataset(torch.ones(10, 3))
            >>> Captured().norms(nn.Linear(3, 1), lambda m, x: m(x).square().sum(1), data, chunk=4).squared.shape
            torch.Size([10, 2])

        """
        # As many samples at a time as the caches like; norms do not depend on the cut.
        if isinstance(data, Dataset):
            data = _iterate_batches(data, lambda: chunk or _samples_in_cache(self._plans.sample_bytes(model)))
        batch_norms = [self.per_sample(model, loss_fn, batch).norms() for batch in data]
        if not batch_norms:
            names = tuple(trainable_parameters(model))
            return Norms(torch.zeros(0, len(names)), names)
        return Norms(torch.cat([n.squared for n in batch_norms]), batch_norms[0].names)

    def sample_bytes(self, model: nn.Module) -> int:
        """Returns the bytes a sample took on the first batch; before that, a guess from the parameters."""
        guess = max(1 << 12, sum(p.numel() for p in trainable_parameters(model).values()) // 8)
        return self._plans.sample_bytes(model) or guess

    def held_bytes(self, model: nn.Module, loss_fn: LossFn, batch: Any) -> int:
        """Returns the bytes the captured backend holds of a sample until norms and sum are made, measured on the
        records of `batch`.

        It is 0 where nothing is held, or nothing is known. Nothing is learned on the way: what the first lot measures,
        it measures itself.
        """
        if self.options.two_pass:
            return 0
        # A trial of its own, without stopwatch and checks, so that nothing is learned from it.
        trial = Captured(replace(self.options, measure=False, verify=False))
        inventory = Inventory(model)
        try:
            with preserve_generators(), keep_vectors(find_spectral_vectors(inventory.modules)):
                trial.compute_for_inventory(inventory, loss_fn, batch)
        except Refusal:  # of a model that cannot be trained as it is: the first lot says so
            return 0
        return trial._plans.held_bytes(model)

    def state_dict(self) -> dict[str, Any]:
        """Returns the formulas and memory formats that the captured backend measured to be fastest, as JSON.

        They differ in rounding only, but a stopwatch may decide otherwise in the next process, so a run that is to
        resume bit-equal takes them along. There are none where nothing is measured.
        """
        return {"choices": self._workspace.stopwatch.export_choices()}

    @property
    def measures(self) -> bool:
        """Whether formulas of shapes that were not met so far will be timed."""
        return self._workspace.stopwatch.measures and not self._workspace.stopwatch.stopped

    def choose_by_shapes(self) -> None:
        """Stops timing formulas; what was chosen so far stays chosen."""
        self._workspace.stopwatch.stopped = True

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Lets the captured backend go on with saved choices in place of measuring; models it met before are looked at
        again.
        """
        if self.options.measure:
            self._workspace.stopwatch.restore_choices(state["choices"])
            self._plans.forget_all()


def _refuse_recomputed_layers() -> None:
    """Raises where the captured backend would run layers a second time after their parameters are gone."""
    if is_layer_by_layer():
        raise Refusal(
            "the model checkpoints activations.\n"
            "That runs layers again on the way back, when their parameters are gone.\n"
            "Switch it off, give draws(physical_batch=…) a smaller number, or leave layer_by_layer out."
        )


def _learn_model(session: Session, batch: Any) -> None:
    """Learns the model from its first batch, with all parameters gathered while it does."""
    with keep_gathered(session.model.parameters()):
        learn_from_first_batch(session, batch)


@dataclass(frozen=True)
class _OnePass:
    """The backend during one pass over a lot, in which the model keeps its modules and parameters."""

    backend: Captured
    inventory: Inventory

    def per_sample(self, model: nn.Module, loss_fn: LossFn, batch: Any) -> PerSample:
        """Computes per-sample gradients with the inventory of this pass, or with a new one for another model."""
        inventory = self.inventory if self.inventory.model is model else Inventory(model)
        return self.backend.compute_for_inventory(inventory, loss_fn, batch)

    def sample_bytes(self, model: nn.Module) -> int:
        """Returns the backend's own estimate of the bytes of a sample."""
        return self.backend.sample_bytes(model)


_CACHE = 1 << 24
_LEAST, _MOST = 64, 256  # enough to keep the layers busy; more gain nothing


def _samples_in_cache(sample: int) -> int:
    """Returns how many samples fit a cache with what they take; `sample` is 0 before the first batch."""
    return max(_LEAST, min(_MOST, _CACHE // sample)) if sample else _LEAST


def _iterate_batches(data: Dataset[Any], chunk: Callable[[], int]) -> Iterator[Any]:
    """Yields batches of a dataset for the norms of the captured backend; a `TensorDataset` is sliced, which saves
    collating single records.
    """
    if type(data) is not TensorDataset:
        yield from DataLoader(data, chunk())
        return
    begin = 0
    while begin < len(data):
        end = begin + chunk()
        yield tuple(column[begin:end] for column in data.tensors)
        begin = end
