"""Runs the engine in two passes to save memory: each layer's (a, g) is used and dropped.

The first pass measures, the second sums; between them nothing is kept but the norms, so activation checkpointing saves
what it is meant to save. Both passes start from the same random state, torch's, numpy's and python's, and compute the
same tensors, so the norms are those of what is summed. Parameters used more than once wait for their last use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import CheckpointError

from sordino.per_sample.batch_structure import batch_size
from sordino.per_sample.engine.batch_result import allocate_sum
from sordino.per_sample.engine.pruned_backward import require_recorded_uses
from sordino.per_sample.engine.session import Session
from sordino.per_sample.formulas.compound_parts import SeveralParts, join_parts
from sordino.per_sample.formulas.gradient_part import NEVER, Part, full_precision, measure_part, raise_cancelled_norms
from sordino.per_sample.protocol import Norms
from sordino.per_sample.recording.tape import HandOverTape, Use
from sordino.refusal import Refusal
from sordino.release.vectors import Grads, accumulation_dtype
from sordino.rng.global_generators import GlobalState, preserve_generators

_OUTSIDE = (
    "a checkpointed part of the model uses parameters outside their layer, and cannot be followed when it runs again; need "
    "a part whose parameters belong to layers; switch activation checkpointing off and give draws(physical_batch=…) a "
    "smaller number, or use Loop(): backend=sordino.per_sample.Loop()"
)

Take = Callable[[int, Part], None]
"""Says what to do with a part, given its column and the part."""


class TwoPassResult:
    """Implements `PerSample` by running the model again for every question but the first."""

    def __init__(self, session: Session, batch: Any, scale: Tensor | None, products: bool) -> None:
        """Runs the first pass; `scale` multiplies each sample's loss, `products` asks for ⟨g_i, θ⟩ too."""
        self._session, self._batch, self._scale = session, batch, scale
        parameters, b = session.plan.structure.parameters, batch_size(batch)
        # Both passes must draw the same random numbers, or they would be of different gradients.
        self._initial_rng = GlobalState.capture()
        self.inner: Tensor | None = None  # ⟨g_i, θ⟩
        if products:
            self.inner = torch.zeros(b, len(parameters), dtype=torch.float64, device=parameters[0].device)
        self.losses, squared = self._measure(b)
        self._norms = Norms(squared, session.plan.structure.names)

    def _measure(self, b: int) -> tuple[Tensor, Tensor]:
        """Returns the losses, and the squared norms (B, P), from the first of two passes."""
        plan = self._session.plan
        parameters = plan.structure.parameters
        # No rows are kept in this pass: the second one computes everything again.
        options = replace(self._session.options, keep_bytes=NEVER)  # the second pass sums what it computes, no rows
        columns = [p.new_zeros(b, dtype=accumulation_dtype(p.dtype)) for p in parameters]
        waiting: dict[int, list[Part]] = {}
        uses: dict[int, int] = {}

        def measure(column: int, part: Part) -> None:
            """Measures a part in the first of two passes: at once if its parameter is used once, else when the others
            are there.
            """
            uses[column] = uses.get(column, 0) + 1
            if self.inner is not None:
                self.inner[:, column] += part.dot(parameters[column].detach())
            if column in plan.usage.used_once:
                columns[column] = measure_part(part, options)
            else:  # the norm of a sum has cross terms: wait for all uses
                waiting.setdefault(column, []).append(part)

        # Run the pass. If a parameter that was measured as used once turns out to have several uses, its norm is wrong,
        # and everything is measured again.
        losses = self._run_pass(measure)
        once = frozenset(column for column, n in uses.items() if n == 1)
        wrong = plan.usage.used_once - once
        plan.note_used_once(once)
        if any(uses.get(column, 0) > 1 for column in wrong):  # measured as if used once: measure again
            uses.clear()
            waiting.clear()
            if self.inner is not None:
                self.inner.zero_()
            self._repeat_pass(measure)
        # Parts of the same parameter are measured together, because the norm of a sum has cross terms.
        with torch.no_grad(), full_precision(losses.device):
            for column, parts in waiting.items():
                separate = SeveralParts(tuple(parts)).bound_squared_terms(
                    options
                )  # the second pass adds them one by one
                columns[column] = raise_cancelled_norms(join_parts(parts).measure_squared_norms(options), separate)
        return losses, torch.stack(columns, 1)

    def norms(self) -> Norms:
        """Returns the norms of the first pass."""
        return self._norms

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns ⟨g_i, u⟩, (B, P), from another pass of the two-pass engine."""
        # One more pass, in which each part is multiplied and dropped.
        products, names = torch.zeros_like(self._norms.squared), self._norms.names

        def take(column: int, part: Part) -> None:
            """Adds the products of one part to its column."""
            if names[column] in u:
                products[:, column] += part.dot(u[names[column]].detach())

        self._repeat_pass(take)
        return products

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns Σ_i w_i g_i from the second of two passes; `into` adds to an earlier result."""
        plan, total = self._session.plan, into
        names = plan.structure.names
        # The sum of an earlier call is continued; otherwise a new one begins at zero.
        if total is None:
            total = allocate_sum(names, plan.structure.parameters, plan.pool)
            torch._foreach_zero_(list(total.values()))
        target = total
        # Samples without a finite norm are masked, since 0 · nan is nan.
        finite = self._norms.squared.isfinite().all(dim=1)
        all_finite = finite.is_cpu and bool(finite.all())  # a device is not waited for

        def take(column: int, part: Part) -> None:
            """Adds one part to the sum in the second of two passes, without samples whose norm is not finite and whose
            weight is 0.
            """
            w = weights[:, column if weights.shape[1] > 1 else 0]
            kept = part if all_finite else part.mask_samples((w == 0) & ~finite)
            kept.add_to(target[names[column]], w)

        self._repeat_pass(take)
        return total

    def _repeat_pass(self, take: Take) -> None:
        """Runs the second of two passes, which draws what the first drew, and leaves the generators as it found them."""
        with preserve_generators():
            self._initial_rng.restore()
            self._run_pass(take)

    def _run_pass(self, take: Take) -> Tensor:
        """Runs one of two passes: the model on a tape that hands each part to `take` during the backward pass; returns
        the losses.
        """
        session, structure = self._session, self._session.plan.structure
        # The tape hands over each use as soon as its gradient arrives, and keeps nothing.
        tape = session.make_tape(HandOverTape, batch_size(self._batch))

        def sink(use: Use, g: Tensor) -> None:
            """Resolves one use in a pass of the two-pass engine and hands over its parts, during which layers run by
            their own code.
            """
            tape.idle = True
            try:
                with torch.no_grad(), full_precision(g.device):
                    for p, part in use.resolve_parts(g).items():
                        take(structure.columns[id(p)], part)
            finally:
                tape.idle = False

        # Forward pass; the tape is closed after it, because a checkpoint's second forward is no new use.
        tape.sink = sink
        with session.record_on(tape), session.keep_vectors(), torch.enable_grad():
            losses = session.compute_losses(self._batch, tape.size)
            tape.closed = True
            if losses.requires_grad:
                require_recorded_uses(losses, structure.columns, structure.names)
                upstream = torch.ones_like(losses) if self._scale is None else self._scale.to(losses)
                try:  # unused: no recorded layer at all
                    torch.autograd.grad(losses, [tape.path], upstream, allow_unused=True)
                except CheckpointError as error:
                    raise Refusal(_OUTSIDE) from error
        return losses.detach()


def run_two_passes(
    session: Session, batch: Any, scale: Tensor | None = None, *, products: bool = False
) -> TwoPassResult:
    """Returns the two-pass result of a batch, after a first pass that has measured the gradients."""
    return TwoPassResult(session, batch, scale, products)
