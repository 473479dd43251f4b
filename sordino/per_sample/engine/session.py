"""One use of the engine: a model and a loss, what is known of them, and the pass over a batch.

A backend opens a session for every batch. What a session learns stays in its plan, which the backend keeps for this
model, loss, mode and kind of input; what it measures stays in the workspace, which is the backend's too. Nothing is
known to the process as a whole: two runs in one process share nothing.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from sordino.per_sample.batch_structure import batch_size, call_loss
from sordino.per_sample.engine.batch_result import Inner, KeepBudget, Result
from sordino.per_sample.engine.module_plan import Installed, ModulePlan, make_plan
from sordino.per_sample.engine.pruned_backward import (
    UsedDifferently,
    require_loss_per_sample,
    require_recorded_uses,
    run_backward_pass,
)
from sordino.per_sample.formulas.workspace import Workspace
from sordino.per_sample.model_inventory import Inventory, find_spectral_vectors, keep_vectors
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.protocol import LossFn
from sordino.per_sample.recording.sample_layout import NOTHING_KNOWN, Layouts
from sordino.per_sample.recording.tape import KeepingTape, Tape
from sordino.rng.global_generators import TorchState

AnyTape = TypeVar("AnyTape", bound=Tape)


class Session:
    """Holds a model, its modules, a loss, their plan, and the options and workspace of the backend."""

    __slots__ = ("loss_fn", "model", "modules", "options", "plan", "workspace")

    def __init__(
        self, inventory: Inventory, loss_fn: LossFn, plan: ModulePlan, options: PerformanceOptions, workspace: Workspace
    ) -> None:
        self.model: nn.Module = inventory.model
        self.modules = inventory.modules
        self.loss_fn = loss_fn
        self.plan = plan
        self.options = options
        self.workspace = workspace

    def for_model(self, model: nn.Module) -> Session:
        """Returns a session for another model, of which nothing is known yet, with the same loss and options."""
        inventory = Inventory(model)
        return Session(inventory, self.loss_fn, make_plan(inventory), self.options, self.workspace)

    def capture_rng(self) -> TorchState:
        """Returns the state of torch's generators, for a pass that may have to be made again."""
        return TorchState.capture()

    def keep_vectors(self) -> AbstractContextManager[None]:
        """Restores the vectors of spectral normalisations after the context, so that a repeated pass is the same."""
        return keep_vectors(find_spectral_vectors(self.modules))

    def compute_losses(self, batch: Any, b: int) -> Tensor:
        """Returns one loss for each of the b samples of a batch, (B,)."""
        return require_loss_per_sample(call_loss(self.loss_fn, self.model, batch), b)

    def record_on(self, tape: Tape) -> AbstractContextManager[None]:
        """Runs the layers inside the context by their rules, which record every use of a parameter on the tape."""
        return Installed(self.plan, self.modules, tape)

    def make_tape(
        self,
        kind: type[AnyTape],
        b: int,
        layouts: Layouts | None = None,
        *,
        outputs: bool = False,
    ) -> AnyTape:
        """Returns a tape of a kind for one pass of the session over b samples, by the plan's layouts if none are given."""
        plan = self.plan
        learned = plan.learned
        # Layouts of the plan as a rule; the first batch gives others while it looks for them.
        known = learned.layouts or NOTHING_KNOWN if layouts is None else layouts
        return kind(b, plan.structure.trainable, self.workspace, known, learned.channels_last, outputs)

    def make_empty_result(self, losses: Tensor, inner: Inner | None = None) -> Result:
        """Returns the session's result of a batch on which no parameter was used."""
        structure = self.plan.structure
        parts, budget = [None] * len(structure.parameters), KeepBudget(self.options)
        return Result(losses, parts, structure.names, structure.parameters, budget, self.plan.pool, inner)

    def run_passes(
        self,
        batch: Any,
        scale: Tensor | None = None,
        *,
        products: bool = False,
        b: int | None = None,
        initial_rng: TorchState | None = None,
    ) -> Result:
        """Runs the forward and pruned backward pass of a session over a batch and returns their result.

        `scale` multiplies each sample's loss, `products` asks for ⟨g_i, θ⟩ too, and `initial_rng` is the state of the
        generators at the beginning, if it is known.
        """
        plan, structure = self.plan, self.plan.structure
        b = batch_size(batch) if b is None else b
        initial_rng = initial_rng or self.capture_rng()
        # The forward pass: layers run by their rules and record every use of a parameter.
        tape = self.make_tape(KeepingTape, b, outputs=products)
        recorded = torch.is_grad_enabled()
        torch._C._set_grad_enabled(True)  # `torch.enable_grad`, at a third of the price
        try:
            with Installed(plan, self.modules, tape):
                losses = self.compute_losses(batch, b)
        finally:
            torch._C._set_grad_enabled(recorded)
        inner = Inner([None] * len(structure.parameters)) if products else None
        if not losses.requires_grad:
            return self.make_empty_result(losses.detach(), inner)
        # Refuse uses that were not recorded, and leave out those on which the losses do not depend.
        nodes = require_recorded_uses(losses, structure.columns, structure.names)
        uses = [use for use in tape.uses if use.edge.node in nodes]
        tape.uses.clear()  # rules hold the tape: without this, inputs would live until the next garbage collection
        if not uses:
            return self.make_empty_result(losses.detach(), inner)
        # The first batch tells how much memory a sample takes.
        if not plan.learned.sample_bytes:
            total = sum(use.bytes + sum(t.nbytes for t in use.saved) for use in uses)
            plan.learn(sample_bytes=max(1, total // b))
        # The backward pass. A batch that uses the model otherwise than the plan says has corrected the plan; it is run
        # again with the same random numbers.
        upstream = plan.upstream_ones(losses) if scale is None else scale.to(losses)
        try:
            backward = run_backward_pass(plan, uses, losses, upstream, self.options, inner)
        except UsedDifferently:  # the plan knows it now
            initial_rng.restore()
            return self.run_passes(batch, scale, products=products, b=b, initial_rng=initial_rng)
        squares = backward.squares if backward.measured else None
        names, parameters = structure.names, structure.parameters
        return Result(losses.detach(), backward.parts, names, parameters, backward.budget, plan.pool, inner, squares)
