"""Runs the pruned backward pass, from recorded uses to one part per parameter.

Most of the memory of a private step would be output gradients that wait for the end of the pass. So a layer with a
large output is measured as soon as the pass reaches it: a hook takes its gradient, and where per-sample rows are kept
for the sum they replace the layer's input and output gradient there and then. What remains alive is, as in plain
training, the activations of layers not reached yet.

A hook fires only on a node that is run, which is so for layers whose input depends on another recorded layer; the
others are asked for by their edge. Only parameters known to be used once are measured early, because the norm of a sum
has cross terms. Both are learned from earlier batches, and a batch that does otherwise is run again without either.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from sordino.per_sample.engine.autograd_graph import gradients_at
from sordino.per_sample.engine.backward_memory import HeldByBackward
from sordino.per_sample.engine.batch_result import Inner
from sordino.per_sample.engine.engine_options import PerformanceOptions
from sordino.per_sample.engine.kept_rows_budget import KeepBudget
from sordino.per_sample.engine.module_plan import ModulePlan
from sordino.per_sample.engine.recorded_use import Use
from sordino.per_sample.formulas.compound_parts import joined
from sordino.per_sample.formulas.gradient_part import Part, PlainArithmetic

_LARGE = 1 << 20
"""Bytes of a layer's output from which on its gradient is used at once and does not wait."""


class UsedDifferently(Exception):
    """Signals a batch that uses the model in another way than those before; the plan has been corrected."""


@dataclass
class PartsByColumn:
    """Collects what the backward pass gave, by column."""

    plan: ModulePlan
    budget: KeepBudget
    parts: list[Part | None]
    squares: list[Tensor | None]
    inner: Inner | None  # ⟨g_i, θ⟩, if asked for
    held: HeldByBackward | None = None  # counts what the batch takes, if that is not known yet
    measured: bool = False  # some squares are known
    _again: dict[int, list[Part]] = field(default_factory=dict)

    def take(self, use: Use, g: Tensor, *, early: bool) -> None:
        """Takes one use and its output gradient, and measures it now if `early` and its parameters are used once."""
        plan, columns = self.plan, self.plan.columns
        # Turn the gradient into parts, count what they hold, and let go of the layer's input.
        found = use.resolve(g)
        if self.held is not None:
            self.held.take(use, g, found)
        if self.inner is not None:
            self.inner.take(columns, found, use.inner(g, found))
        use.saved, use.output = (), None
        # A second use of a parameter waits to be joined with the first. If the first was already measured as the only
        # one, the plan was wrong, and the pass has to be made again.
        for p, part in found.items():
            column = columns[id(p)]
            if self.parts[column] is None:
                self.parts[column] = part
                if early and column in plan.usage.once:
                    self.squares[column] = self.budget.measure(part)
                    self.measured = True
            elif self.squares[column] is None:
                self._again.setdefault(column, []).append(part)
            else:
                plan.usage.again |= {column}
                plan.usage.once -= {column}
                raise UsedDifferently

    def finish(self) -> None:
        """Joins the uses of each parameter, and notes which parameters were used once."""
        for column, others in self._again.items():
            first = self.parts[column]
            assert first is not None, "the first use comes first"
            self.parts[column] = joined([first, *others])
        usage = self.plan.usage
        used = usage.once or frozenset(k for k, part in enumerate(self.parts) if part is not None)
        usage.once = used - self._again.keys() - usage.again


def backward_pass(
    plan: ModulePlan,
    uses: Sequence[Use],
    losses: Tensor,
    upstream: Tensor,
    options: PerformanceOptions,
    inner: Inner | None,
) -> PartsByColumn:
    """Runs the backward pass and returns its parts; `upstream` is the gradient at the losses."""
    columns = len(plan.parameters)
    held = None if plan.held_bytes else HeldByBackward(losses.numel())
    found = PartsByColumn(plan, KeepBudget.holding(options, uses), [None] * columns, [None] * columns, inner, held)
    # Divide the uses: large layers inside the graph are measured by a hook when the pass reaches them.
    usage = plan.usage
    early = [use for use in uses if use.inside and use.bytes >= _LARGE] if usage.once and usage.early else []
    late = [use for use in uses if not (use.inside and use.bytes >= _LARGE)] if early else list(uses)
    if not late:
        early, late = [], list(uses)
    waiting = set(map(id, early))

    def reached(use: Use) -> Callable[[Any], None]:
        """Returns the hook that measures a use when its gradient arrives."""

        def hook(grads: Any) -> None:
            g = grads[use.edge.output_nr]
            if g is not None:
                waiting.discard(id(use))
                with PlainArithmetic(g.device):
                    found.take(use, g, early=True)

        return hook

    # One pass of autograd gives the gradients at all other uses.
    handles = [use.edge.node.register_prehook(reached(use)) for use in early]
    try:
        grads = gradients_at(losses, tuple([use.edge for use in late]), upstream)
    finally:
        for handle in handles:  # a hook holds what holds its node
            handle.remove()
    # A hook that did not fire means that a large layer was not run; the batch is run again without hooks.
    if waiting:
        usage.early = False
        raise UsedDifferently
    # Take the remaining uses, in order, and join those of the same parameter.
    with PlainArithmetic(losses.device):
        for use, g in zip(late, grads, strict=True):
            found.take(use, g, early=False)
        found.finish()
    if held is not None:
        plan.held_bytes = held.of_a_sample()
    return found
