"""The tape of one forward pass: every use of a parameter, and where its gradient arrives.

A rule runs its layer on detached parameters, so the graph holds no parameter that the tape has not recorded, and
autograd computes no parameter gradients. What is kept is a graph edge, never the output tensor: an in-place operation
after the layer replaces the tensor, and an edge still names the value the layer returned. Inputs are kept with their
version, and a changed version raises: a mutated input would give a wrong norm.

A tape works in one of three ways: `KEEP` holds inputs until the backward pass is over; `HAND_OVER` saves them through
autograd (so activation checkpointing may forget them) and hands each use over during the backward pass; `SHAPES` only
logs shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sordino.distributed.layer_by_layer import are_our_hooks
from sordino.per_sample.formulas.parameter_product import ParameterProduct
from sordino.per_sample.formulas.workspace import Workspace
from sordino.per_sample.recording.recorded_use import Parts, Use
from sordino.per_sample.recording.sample_layout import (
    Layout,
    Layouts,
    SharedOperation,
    make_other_length_refusal,
    make_unseen_refusal,
)
from sordino.refusal import Refusal

Rule = Callable[..., Any]
"""Runs a layer's forward pass on a tape: `rule(tape, module, *inputs)`; see `layers/layer_registry.py`."""

_EXACT = (torch.float32, torch.float64)
"""Dtypes whose outputs are exact enough for inner products; in half precision ⟨g_i, θ⟩ is taken in float32."""


class Mode(Enum):
    """Says what a tape does with a use."""

    KEEP = auto()
    HAND_OVER = auto()
    SHAPES = auto()


class Checkpointed(Exception):
    """Raised where saved tensors are rerouted (activation checkpointing): the engine must go in two passes."""


_FIRST = Layout(0)
_ROW_EACH = (_FIRST,)
_UNSEEN = Layout(-1, 0)
"""Stands for the layout of a layer that no batch has called yet."""


class _WithPath(torch.autograd.Function):
    """Returns its input unchanged, with a gradient path where the input has none."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, path: Tensor) -> Tensor:
        """Returns y, marked as changed."""
        ctx.mark_dirty(y)
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[None, Tensor]:
        """Returns zero for the path; y itself needs no gradient."""
        return None, g.new_zeros(())


class _HandOver(torch.autograd.Function):
    """Returns its input unchanged; its backward hands what was saved and the gradient to a sink, one use at a time."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, path: Tensor, sink: Callable[..., None], *saved: Tensor) -> Tensor:
        """Saves the layer's tensors through autograd, so that a checkpoint may forget them."""
        ctx.mark_dirty(y)
        ctx.save_for_backward(*saved)
        ctx.sink = sink
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Hands the saved tensors and the gradient at the output to the sink."""
        saved = ctx.saved_tensors  # read once: a checkpoint gives them only once
        ctx.sink(tuple(t.detach() for t in saved), g)
        return g, g.new_zeros(()), None, *[None] * len(saved)


@dataclass
class Tape:
    """Records what one forward pass used."""

    size: int  # B
    mode: Mode
    trainable: frozenset[int]  # ids of the parameters wanted
    workspace: Workspace  # for the formulas
    layouts: Layouts = field(default_factory=dict)  # by module, by call
    channels_last: bool = False
    outputs: bool = False  # KEEP: hold the outputs too, for inner products with the parameters
    uses: list[Use] = field(default_factory=list)
    shapes: list[tuple[Hashable, torch.Size]] = field(default_factory=list)  # SHAPES: (module, shape of its input)
    places: set[Any] = field(default_factory=set)  # SHAPES: the graph's nodes at which layers were recorded
    sink: Callable[[Use, Tensor], None] | None = None  # HAND_OVER: called during the backward pass
    closed: bool = False
    in_shared_layer: bool = False  # inside a layer whose input no sample owns
    idle: bool = False  # layers run by their own code, as inside a part's computation
    _path: Tensor | None = None
    name: str = ""
    index: int = -1
    original: Rule = field(default=lambda: None)
    follower: Any = None  # the `LooseParameters` of this pass
    rules: Mapping[int, tuple[int, Rule]] = field(default_factory=dict)  # by a module's identity: its place, its rule
    _calls: dict[Hashable, int] = field(default_factory=dict)
    _layout: Layout = _FIRST

    def run_layer(
        self, index: int, name: str, module: nn.Module, rule: Rule, original: Rule, args: Any, kwargs: Any
    ) -> Any:
        """Runs a layer's forward by its rule, or by its own code where nothing is to be recorded."""
        if self.idle or not torch.is_grad_enabled():
            return original(*args, **kwargs)
        # Find out where the layer's input has its samples; an input that no sample owns is not recorded.
        outer = self.index, self.name, self._layout, self.original
        if index in self.layouts:  # a fallback leaf asks for each of its tensors instead
            layout = self._next_layout(index, name)
            if layout is None:
                return self._run_shared(original, args, kwargs)
            self._layout = layout
        else:
            self._layout = _UNSEEN
        # The rule sees this layer's name and layout on the tape; those of the layer around it are put back after it.
        self.index, self.name, self.original = index, name, original
        try:
            return rule(self, module, *args, **kwargs)
        finally:
            self.index, self.name, self._layout, self.original = outer

    def release_graph(self) -> None:
        """Lets go of the pass: the graph holds the tape, and what the tape holds of the graph would keep both alive."""
        self.uses.clear()
        self.follower = self._path = None

    def _run_shared(self, original: Rule, args: Any, kwargs: Any) -> Any:
        """Runs a layer whose input no sample owns by its own code."""
        outer, self.in_shared_layer = self.in_shared_layer, True
        try:
            return original(*args, **kwargs)
        finally:
            self.in_shared_layer = outer

    @property
    def path(self) -> Tensor:
        """A leaf to which gradients can flow where a layer's input has none; made when first asked for."""
        if self._path is None:
            self._path = torch.zeros((), requires_grad=True)
        return self._path

    @property
    def shapes_only(self) -> bool:
        """Whether this is a pass for shapes only."""
        return self.mode is Mode.SHAPES

    @property
    def keeps_inputs_only(self) -> bool:
        """Whether the tape holds inputs, and nothing else, until the backward pass."""
        return self.mode is Mode.KEEP and not self.outputs

    def has_one_row_per_sample(self, module: nn.Module, rule: Rule) -> bool:
        """Returns whether a layer is run by that rule on inputs with one row per sample, in the first dimension."""
        position, found = self.rules.get(id(module), (-1, None))
        return found is rule and tuple(self.layouts.get(position, ())) == _ROW_EACH

    def lookup_layout(self, key: Hashable) -> Layout | None:
        """Returns what is known of a tensor by its key; None means that it has no samples."""
        return self._next_layout(key, self.name)

    def shared_operation(self, key: Hashable, name: str) -> SharedOperation:
        """Returns what is known of an operation on shared tensors; raises where the first batch had another."""
        found: SharedOperation = self._next_layout(key, self.name)  # type: ignore[assignment]
        if found.name != name:
            raise make_unseen_refusal(self.name)
        return found

    def check_length(self, x: Tensor, layout: Layout) -> None:
        """Raises where the samples are not where they were, with as many rows."""
        if layout.dim >= x.dim() or x.shape[layout.dim] != self.size * layout.rows:
            raise make_other_length_refusal(self.name, x.dim())

    def _next_layout(self, key: Hashable, name: str) -> Layout | None:
        """Returns the layout of this call of a layer, and counts the call where calls differ."""
        layouts = self.layouts.get(key, ())
        if len(layouts) == 1:
            return layouts[0]  # type: ignore[return-value]
        if not layouts:
            raise make_unseen_refusal(name)
        call = self._calls.get(key, 0)
        self._calls[key] = call + 1
        if call >= len(layouts):
            raise make_unseen_refusal(name)
        return layouts[call]  # type: ignore[return-value]

    def batch_dim(self, x: Tensor, *, only: int | None = None, several: bool = True) -> int:
        """Returns the dimension of x that counts samples; rules call it once per use, and never guess it from sizes.

        `only` is the dimension that the rule can do with, if there is only one. `several` says whether a sample may
        have several rows there.
        """
        if self.mode is Mode.SHAPES:
            self.shapes.append((self.index, x.shape))
            return 0
        layout = self._layout
        if layout is _UNSEEN:
            raise make_unseen_refusal(self.name)
        self.check_length(x, layout)
        if (only is not None and layout.dim != only) or (layout.rows != 1 and (layout.dim or not several)):
            raise Refusal(
                f"layer '{self.name}': its input has the samples in dimension {layout.dim} ({layout.rows} rows each); "
                f"need one row per sample in dimension {only or 0}; reshape the input, or use Loop()"
            )
        return layout.dim

    def find_argument_layout(self, which: tuple[Hashable, ...], x: Tensor) -> Layout | None:
        """Returns the layout of one of several tensors a layer takes or returns; None if all samples share it."""
        key = (self.index, *which)
        if self.mode is Mode.SHAPES:
            self.shapes.append((key, x.shape))
            return Layout(0)
        layout = self._next_layout(key, self.name)
        if layout is not None:
            self.check_length(x, layout)
        return layout

    def wants(self, p: Tensor | None) -> bool:
        """Returns whether this parameter's gradient is asked for."""
        return p is not None and id(p) in self.trainable

    def leaf(self, p: Tensor, x: Tensor | None = None) -> Tensor:
        """Returns the parameter for the graph: detached, and with a gradient path only where the input has none."""
        proxy = p.detach()
        if x is None or not x.requires_grad:
            proxy.requires_grad_()
        return proxy

    def record(
        self,
        y: Tensor,
        saved: tuple[Tensor, ...],
        parts: Parts,
        *,
        rows: int | None = None,
        product: ParameterProduct | None = None,
        more: int = 0,
    ) -> Tensor:
        """Records a use and returns y, which is what the layer must return (or compute on).

        `saved` is what `parts` needs besides the gradient at y. `rows`: the rows of that gradient which belong to one
        sample, if they are not those of the input. `product`: how ⟨g_i, θ⟩ follows from y. `more`: the bytes of outputs
        before y, in a use that stands for several layers.
        """
        if self.mode is Mode.SHAPES:
            if y.grad_fn is not None:
                self.places.add(y.grad_fn)
            return y
        each = self._layout.rows if rows is None else rows
        if self.mode is Mode.KEEP:
            # Saved tensors that are rerouted mean activation checkpointing, which would run the layer again; the engine
            # has to go in two passes then.
            rerouted = torch._C._autograd._top_saved_tensors_default_hooks(True)
            if rerouted is not None and not are_our_hooks(rerouted):
                raise Checkpointed
            # Make sure that a gradient reaches y, and note inputs with their versions, so that a change is noticed.
            if not y.requires_grad:
                y = _WithPath.apply(y, self.path)  # type: ignore[no-untyped-call]
            held = tuple([t.detach() for t in saved])
            versions = tuple([t._version for t in held])
            inside = any([t.requires_grad for t in saved])  # noqa: C419 — a generator costs more
            # Keep the place of y in the graph. The output itself is held only if its product with the gradient is
            # wanted and cheaper than one with the parameters.
            node = y.grad_fn  # nodes of torch's own are theirs to keep; others take more
            own = node is None or isinstance(node, torch._C._FunctionBase)
            edge = get_gradient_edge(y) if node is None or own else GradientEdge(node, y.output_nr)
            use = Use(self.name, edge, held, versions, parts, each, y.nbytes + more, inside)
            if (
                self.outputs
                and product is not None
                and y.dtype in _EXACT
                and product.is_cheaper(y.numel() // self.size)
            ):
                use.output, use.version, use.product = y.detach(), y._version, product
            self.uses.append(use)
            return y
        # HAND_OVER: the use is handed over during the backward pass, with the tensors that autograd saved.
        use = Use(self.name, get_gradient_edge(self.path), (), (), parts, each)
        if not self.closed:  # a checkpoint's second forward only provides saved tensors
            self.uses.append(use)

        def sink(tensors: tuple[Tensor, ...], g: Tensor) -> None:
            """Hands a use with its saved tensors to the tape's sink."""
            if self.sink is not None:
                self.sink(Use(use.name, use.edge, tensors, tuple(t._version for t in tensors), parts, each), g)

        out: Tensor = _HandOver.apply(y, self.path, sink, *[t.detach() for t in saved])  # type: ignore[no-untyped-call]
        return out
