"""Runs the pruned backward pass, from recorded uses to one part per parameter.

Layers run on detached parameters, so a trainable parameter that is still in autograd's graph was used in a way nobody
recorded (`F.linear(x, model.fc.weight)`, a penalty on the parameters inside the loss). Such a use must never be dropped
silently, so the graph is walked before the pass, to find what the losses depend on.

Most of the memory of a private step would be output gradients that wait for the end of the pass. So a layer with a
large output is measured as soon as the pass reaches it: a hook takes its gradient, and where per-sample rows are kept
for the sum they replace the layer's input and output gradient there and then. What remains alive is, as in plain
training, the activations of layers not reached yet.

A hook fires only on a node that is run, which is so for layers whose input depends on another recorded layer; the
others are asked for by their edge. Only parameters known to be used once are measured early, because the norm of a sum
has cross terms. Both are learned from earlier batches, and a batch that does otherwise is run again without either.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.autograd import graph as autograd
from torch.autograd.graph import GradientEdge

from sordino.per_sample.engine.backward_memory import HeldByBackward
from sordino.per_sample.engine.batch_result import Inner, KeepBudget
from sordino.per_sample.engine.module_plan import ModulePlan
from sordino.per_sample.formulas.compound_parts import join_parts
from sordino.per_sample.formulas.gradient_part import Part, PlainArithmetic
from sordino.per_sample.model_checks import require_one_loss
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.recording.sample_layout import UnseenCall
from sordino.per_sample.recording.tape import Use
from sordino.refusal import Refusal

_run: Callable[..., Any] | None = getattr(autograd, "_engine_run_backward", None)  # not promised to stay there
_LEAF, _REENTRANT = "AccumulateGrad", "CheckpointFunctionBackward"

_LARGE = 1 << 20
"""Bytes of a layer's output from which on its gradient is used at once and does not wait."""


def require_loss_per_sample(losses: Tensor, b: int) -> Tensor:
    """Returns the losses that the pruned backward pass starts from, with shape (B,), and refuses a loss that is
    anything else.
    """
    # One sample, or a loss that was reduced by hand, must be one number.
    if b == 1 or not isinstance(losses, Tensor) or losses.dim() == 0:
        return require_one_loss(losses).unsqueeze(0)
    if losses.shape != (b,):
        raise Refusal(
            f"loss_fn returned {losses.dim()} dimension(s) that are not one loss per sample.\n"
            "Each record is clipped by its own loss's gradient.\n"
            "Return shape (B,): use reduction='none' and reduce only over the sample's own axes."
        )
    return losses


def compute_gradients_at(losses: Tensor, edges: tuple[GradientEdge, ...], upstream: Tensor) -> tuple[Tensor, ...]:
    """Runs a pruned backward pass to edges of the autograd graph and returns the gradients of the losses there, like
    `torch.autograd.grad(losses, edges, upstream)`.

    It calls autograd's engine directly where torch offers that, because `torch.autograd.grad` repeats checks at a
    price.
    """
    if _run is None:
        return torch.autograd.grad(losses, edges, upstream)
    gradients: tuple[Tensor, ...] = _run((losses,), (upstream,), False, False, edges, False, accumulate_grad=False)
    return gradients


def find_reachable_nodes(losses: Tensor) -> set[Any]:
    """Returns every node of the autograd graph that the losses depend on, before the backward pass is pruned."""
    # Depth first, each node once: graphs of deep models have many paths.
    seen: set[Any] = set()
    stack = [losses.grad_fn]
    while stack:
        node = stack.pop()
        if node is not None and node not in seen:
            seen.add(node)
            stack += [n for n, _ in node.next_functions]
    return seen


def find_unrecorded_parameters(nodes: set[Any], columns: Mapping[int, int]) -> set[int]:
    """Returns the identities of the trainable parameters that are used outside the recorded layers."""
    return {id(node.variable) for node in nodes if type(node).__name__ == _LEAF and id(node.variable) in columns}


def require_recorded_uses(losses: Tensor, columns: Mapping[int, int], names: tuple[str, ...]) -> set[Any]:
    """Returns every node of the autograd graph the losses depend on, and raises if a trainable parameter is used
    outside the recorded layers, where the pruned backward pass would miss it.
    """
    nodes = find_reachable_nodes(losses)
    # Ask each kind of node once: there are a few kinds, and there may be many nodes.
    for kind in {type(node) for node in nodes}:  # a few, where there may be many nodes
        name = kind.__name__
        if name == _LEAF:
            _refuse_unrecorded(nodes, columns, names)
        elif name == _REENTRANT:
            refuse_reentrant(nodes)
    return nodes


def _refuse_unrecorded(nodes: set[Any], columns: Mapping[int, int], names: tuple[str, ...]) -> None:
    """Raises `Unseen` for the first trainable parameter that the pruned backward pass would miss: it is still a leaf of
    the autograd graph.
    """
    for node in nodes:
        if type(node).__name__ == _LEAF and id(node.variable) in columns:
            raise UnseenCall(
                f"parameter '{names[columns[id(node.variable)]]}' is used outside its layer, or its layer's input "
                "has no "
                "batch dimension; need uses whose gradient can be told apart by sample; call the module that owns it "
                "on "
                "inputs with one row per sample (expand position ids to (B, T)), leave penalties on parameters out of "
                "loss_fn (they are public: use weight decay), or use Loop(): backend=sordino.per_sample.Loop()"
            )


def refuse_reentrant(nodes: set[Any]) -> None:
    """Raises if the graph hides layers from the pruned backward pass in a reentrant checkpoint."""
    for node in nodes:
        if type(node).__name__ == _REENTRANT:
            raise Refusal(
                "torch.utils.checkpoint with use_reentrant=True hides its layers from autograd.\n"
                "Per-sample gradients are taken at these layers.\n"
                "Pass use_reentrant=False."
            )


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

    def add_use(self, use: Use, g: Tensor, *, early: bool) -> None:
        """Takes one use and its output gradient from the pruned backward pass, and measures it now if `early` and its
        parameters are used once.
        """
        plan, columns = self.plan, self.plan.structure.columns
        # Turn the gradient into parts, count what they hold, and let go of the layer's input.
        use_parts = use.resolve_parts(g)
        if self.held is not None:
            self.held.count_use(use, g, use_parts)
        if self.inner is not None:
            self.inner.add_products(columns, use_parts, use.parameter_products(g, use_parts))
        use.saved, use.output = (), None
        # A second use of a parameter waits to be joined with the first. If the first was already measured as the only
        # one, the plan was wrong, and the pass has to be made again.
        for p, part in use_parts.items():
            column = columns[id(p)]
            if self.parts[column] is None:
                self.parts[column] = part
                if early and column in plan.usage.used_once:
                    self.squares[column] = self.budget.measure(part)
                    self.measured = True
            elif self.squares[column] is None:
                self._again.setdefault(column, []).append(part)
            else:
                plan.note_used_again(column)
                raise UsedDifferently

    def join_uses(self) -> None:
        """Joins the uses of each parameter after the pruned backward pass, and notes which parameters were used once."""
        for column, others in self._again.items():
            first = self.parts[column]
            assert first is not None, "the first use comes first"
            self.parts[column] = join_parts([first, *others])
        usage = self.plan.usage
        used = usage.used_once or frozenset(k for k, part in enumerate(self.parts) if part is not None)
        self.plan.note_used_once(used - self._again.keys() - usage.used_again)


def run_backward_pass(
    plan: ModulePlan,
    uses: Sequence[Use],
    losses: Tensor,
    upstream: Tensor,
    options: PerformanceOptions,
    inner: Inner | None,
) -> PartsByColumn:
    """Runs the pruned backward pass and returns its parts; `upstream` is the gradient at the losses."""
    columns = len(plan.structure.parameters)
    # What the pass holds at its end is counted once, to choose the size of later batches.
    held = None if plan.learned.held_bytes else HeldByBackward(losses.numel())
    parts_by_column = PartsByColumn(
        plan, KeepBudget.for_uses(options, uses), [None] * columns, [None] * columns, inner, held
    )
    # Divide the uses: large layers inside the graph are measured by a hook when the pass reaches them.
    usage = plan.usage
    early = (
        [use for use in uses if use.depends_on_layer and use.bytes >= _LARGE]
        if usage.used_once and usage.measures_early
        else []
    )
    late = [use for use in uses if not (use.depends_on_layer and use.bytes >= _LARGE)] if early else list(uses)
    if not late:
        early, late = [], list(uses)
    waiting = set(map(id, early))

    def make_hook(use: Use) -> Callable[[Any], None]:
        """Returns the hook that measures a use when its gradient arrives in the pruned backward pass."""

        def hook(grads: Any) -> None:
            """Measures a use from its output gradient, which arrives in the pruned backward pass."""
            g = grads[use.edge.output_nr]
            if g is not None:
                waiting.discard(id(use))
                with PlainArithmetic(g.device):
                    parts_by_column.add_use(use, g, early=True)

        return hook

    # One pass of autograd gives the gradients at all other uses.
    handles = [use.edge.node.register_prehook(make_hook(use)) for use in early]
    try:
        grads = compute_gradients_at(losses, tuple([use.edge for use in late]), upstream)
    finally:
        for handle in handles:  # a hook holds what holds its node
            handle.remove()
    # A hook that did not fire means that a large layer was not run; the batch is run again without hooks.
    if waiting:
        plan.stop_measuring_early()
        raise UsedDifferently
    # Take the remaining uses, in order, and join those of the same parameter.
    with PlainArithmetic(losses.device):
        for use, g in zip(late, grads, strict=True):
            parts_by_column.add_use(use, g, early=False)
        parts_by_column.join_uses()
    if held is not None:
        plan.learn(held_bytes=held.bytes_per_sample())
    return parts_by_column
