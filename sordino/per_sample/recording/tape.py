"""The tape of one forward pass: every use of a parameter, and where its gradient arrives.

A rule runs its layer on detached parameters, so the graph holds no parameter that the tape has not recorded, and
autograd computes no parameter gradients. What is kept is a graph edge, never the output tensor: an in-place operation
after the layer replaces the tensor, and an edge still names the value the layer returned. Inputs are kept with their
version, and a changed version raises: a mutated input would give a wrong norm.

There are three kinds of tape. A `KeepingTape` holds inputs until the backward pass is over. A `HandOverTape` saves them
through autograd, so that activation checkpointing may forget them, and hands each use over during the backward pass. A
`ShapesTape` only logs shapes.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd.graph import GradientEdge, get_gradient_edge

from sordino.distributed.layer_by_layer import are_our_hooks
from sordino.per_sample.formulas.compound_parts import SeveralRows
from sordino.per_sample.formulas.gradient_part import GradientRows, Part, lift_precision
from sordino.per_sample.formulas.parameter_product import ParameterProduct
from sordino.per_sample.formulas.workspace import Workspace
from sordino.per_sample.recording.sample_layout import (
    NOTHING_KNOWN,
    OUTSIDE,
    ArgumentKey,
    Layout,
    Layouts,
    OperationKey,
    SharedOperation,
    UnknownLayout,
    make_other_length_refusal,
    make_unasked_refusal,
    make_unseen_refusal,
)
from sordino.refusal import Refusal

Parts = Callable[[tuple[Tensor, ...], Tensor], Mapping[Tensor, Part | Tensor]]
"""Turns what a rule saved and the gradient at its output into one entry per parameter."""

Rule = Callable[..., Any]
"""Runs a layer's forward pass on a tape: `rule(tape, module, *inputs)`; see `layers/layer_registry.py`."""

_EXACT = (torch.float32, torch.float64)
"""Dtypes whose outputs are exact enough for inner products; in half precision ⟨g_i, θ⟩ is taken in float32."""


@dataclass(slots=True)
class Use:
    """One recorded use: the place of its output in the graph, its inputs, and how to make parts of them."""

    name: str
    edge: GradientEdge
    saved: tuple[Tensor, ...]
    versions: tuple[int, ...]
    parts: Parts
    rows: int  # of the gradient, for each sample
    bytes: int = 0  # of the output
    depends_on_layer: bool = False  # its input depends on another recorded layer
    output: Tensor | None = None
    version: int = 0
    product: ParameterProduct | None = None

    def parameter_products(self, g: Tensor, parts: Mapping[Tensor, Part]) -> dict[Tensor, Tensor]:
        """Returns ⟨g_i, θ⟩ for the parameters of a use on the tape, (B,), from its output; empty where the output has
        changed.
        """
        if self.product is None or self.output is None or self.output._version != self.version:
            return {}  # not held, or an in-place operation came after
        largest, *others = [p for p in self.product.parameters if p is not None]
        if not all(p in parts for p in (largest, *others)):  # a frozen one contributes to the output too
            return {}
        # The output's product with its gradient is the sum over all parameters. The largest one's is what is left of it
        # after the others, which are cheap.
        products = {p: parts[p].dot(p.detach()).double() for p in others}
        total = self.product.sum_products(g, self.output).double()
        total = total if self.rows == 1 else total.view(-1, self.rows).sum(1)
        products[largest] = total - sum(products.values())
        return products

    def resolve_parts(self, g: Tensor) -> dict[Tensor, Part]:
        """Returns the parts of a use on the tape, once the gradient at the output is known; refuses an input that was
        changed since.
        """
        self.refuse_changed_inputs()
        return to_parts(self.parts(self.saved, g), self.rows)

    def refuse_changed_inputs(self) -> None:
        """Raises Refusal if an input of a use on the tape was changed in place after the layer had read it."""
        for tensor, version in zip(self.saved, self.versions, strict=True):
            if tensor._version != version:
                raise Refusal(
                    f"layer '{self.name}': its input was changed in place after the layer had read it.\n"
                    "Gradients need the value that it computed with.\n"
                    "Use the out-of-place operation (x = x + y, not x += y)."
                )


def to_parts(entries: Mapping[Tensor, Part | Tensor], rows: int = 1) -> dict[Tensor, Part]:
    """Wraps the plain tensors that a use on the tape gives as parts, and adds up the rows of a sample where it has
    several.
    """
    parts: dict[Tensor, Part] = {}
    for p, part in entries.items():
        plain: Part = GradientRows(lift_precision(part)) if isinstance(part, Tensor) else part
        parts[p] = plain if rows == 1 else SeveralRows(plain, rows)
    return parts


class Checkpointed(Exception):
    """Raised where saved tensors are rerouted (activation checkpointing): the engine must go in two passes."""


_FIRST = Layout(0)
_ROW_EACH = (_FIRST,)

_Key = TypeVar("_Key", bound=Hashable)
_Known = TypeVar("_Known")


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
        """Saves a layer's tensors, which the tape hands over later, through autograd, so that a checkpoint may forget
        them.
        """
        ctx.mark_dirty(y)
        ctx.save_for_backward(*saved)
        ctx.sink = sink
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, ...]:
        """Hands the tensors the tape saved and the gradient at the output to the sink."""
        saved = ctx.saved_tensors  # read once: a checkpoint gives them only once
        ctx.sink(tuple(t.detach() for t in saved), g)
        return g, g.new_zeros(()), None, *[None] * len(saved)


@dataclass
class Tape:
    """Records what one forward pass used; rules see its settings and the layer that is running."""

    # What holds for the whole pass.
    size: int  # B
    trainable: frozenset[int]  # ids of the parameters wanted
    workspace: Workspace  # for the formulas
    layouts: Layouts = NOTHING_KNOWN
    channels_last: bool = False
    outputs: bool = False  # the outputs are held too, for inner products with the parameters
    rules: Mapping[int, tuple[int, Rule]] = field(default_factory=dict)  # by a module's identity: its place, its rule
    follower: Any = None  # the `LooseParameters` of this pass
    # The layer that is running.
    index: int = OUTSIDE
    name: str = ""
    original: Rule = field(default=lambda: None)  # its own `forward`
    _layout: Layout | Literal[UnknownLayout.UNSEEN] = _FIRST  # of its input
    # What happened so far.
    uses: list[Use] = field(default_factory=list)
    idle: bool = False  # layers run by their own code, as inside a part's computation
    _calls: dict[Hashable, int] = field(default_factory=dict)
    _path: Tensor | None = None

    shapes_only: ClassVar[bool] = False
    """Whether this is a pass for shapes only."""
    holds_inputs: ClassVar[bool] = False
    """Whether the tape itself holds inputs until the backward pass."""

    def run_layer(
        self, index: int, name: str, module: nn.Module, rule: Rule, original: Rule, args: Any, kwargs: Any
    ) -> Any:
        """Runs a layer's forward on the tape by its rule, or by its own code where nothing is to be recorded."""
        if self.idle or not torch.is_grad_enabled():
            return original(*args, **kwargs)
        # Find out where the layer's input has its samples; an input that no sample owns is not recorded.
        outer = self.index, self.name, self._layout, self.original
        inputs = self.layouts.inputs
        if index in inputs:  # a fallback leaf asks for each of its tensors instead
            layout = self._next_call(inputs, index, name)
            if layout is None:
                return original(*args, **kwargs)
            self._layout = layout
        else:
            self._layout = UnknownLayout.UNSEEN
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

    @property
    def path(self) -> Tensor:
        """Returns the tape's leaf to which gradients can flow where a layer's input has none; made when first asked
        for.
        """
        if self._path is None:
            self._path = torch.zeros((), requires_grad=True)
        return self._path

    def has_one_row_per_sample(self, module: nn.Module, rule: Rule) -> bool:
        """Returns whether a layer is run by that rule on inputs with one row per sample, in the first dimension."""
        position, found = self.rules.get(id(module), (OUTSIDE, None))
        return found is rule and tuple(self.layouts.inputs.get(position, ())) == _ROW_EACH

    def shared_operation(self, key: OperationKey, name: str) -> SharedOperation:
        """Returns what the tape knows of an operation on shared tensors; raises where the first batch had another."""
        found = self._next_call(self.layouts.operations, key, self.name)
        if found.name != name:
            raise make_unseen_refusal(self.name)
        return found

    def check_length(self, x: Tensor, layout: Layout) -> None:
        """Raises where the samples are not where they were, with as many rows."""
        if layout.dim >= x.dim() or x.shape[layout.dim] != self.size * layout.rows:
            raise make_other_length_refusal(self.name, x.dim())

    def _next_call(self, known: Mapping[_Key, Sequence[_Known]], key: _Key, name: str) -> _Known:
        """Returns what the tape knows of this call of a layer, and counts the call where calls differ."""
        calls = known.get(key, ())
        if len(calls) == 1:
            return calls[0]
        if not calls:
            raise make_unseen_refusal(name)
        call = self._calls.get(key, 0)
        self._calls[key] = call + 1
        if call >= len(calls):
            raise make_unseen_refusal(name)
        return calls[call]

    def batch_dim(self, x: Tensor, *, only: int | None = None, several: bool = True) -> int:
        """Returns the dimension of x that counts samples, as the tape knows; rules call it once per use, and never
        guess it from sizes.

        `only` is the dimension that the rule can do with, if there is only one. `several` says whether a sample may
        have several rows there.
        """
        layout = self._layout
        if layout is UnknownLayout.UNSEEN:
            raise make_unseen_refusal(self.name)
        self.check_length(x, layout)
        if (only is not None and layout.dim != only) or (layout.rows != 1 and (layout.dim or not several)):
            raise Refusal(
                f"layer '{self.name}': its input has the samples in dimension {layout.dim} ({layout.rows} rows each).\n"
                f"The layer's rule reads one row per sample in dimension {only or 0}.\n"
                "Reshape the input, or use Loop()."
            )
        return layout.dim

    def find_argument_layout(self, which: tuple[str, int], x: Tensor) -> Layout | None:
        """Returns the layout that the tape knows of one of several tensors a layer takes or returns; None if all
        samples share it.
        """
        layout = self._next_call(self.layouts.arguments, (self.index, *which), self.name)
        if layout is not None:
            self.check_length(x, layout)
        return layout

    def wants(self, p: Tensor | None) -> bool:
        """Returns whether this parameter's gradient is asked for."""
        return p is not None and id(p) in self.trainable

    def leaf(self, p: Tensor, x: Tensor | None = None) -> Tensor:
        """Returns a parameter for the graph of the tape's pass: detached, and with a gradient path only where the input
        has none.
        """
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
        """Records a use on the tape and returns y, which is what the layer must return (or compute on).

        `saved` is what `parts` needs besides the gradient at y. `rows`: the rows of that gradient which belong to one
        sample, if they are not those of the input. `product`: how ⟨g_i, θ⟩ follows from y. `more`: the bytes of outputs
        before y, in a use that stands for several layers.
        """
        raise NotImplementedError


class KeepingTape(Tape):
    """Holds inputs, and outputs if asked, until the backward pass is over."""

    holds_inputs = True

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
        """Keeps a use on the tape, with its inputs and the place of y in the graph."""
        if rows is None:
            layout = self._layout
            if layout is UnknownLayout.UNSEEN:
                raise make_unasked_refusal(self.name)
            rows = layout.rows
        # Saved tensors that are rerouted mean activation checkpointing, which would run the layer again; the engine has
        # to go in two passes then.
        rerouted = torch._C._autograd._top_saved_tensors_default_hooks(True)
        if rerouted is not None and not are_our_hooks(rerouted):
            raise Checkpointed
        # Make sure that a gradient reaches y, and note inputs with their versions, so that a change is noticed.
        if not y.requires_grad:
            y = _WithPath.apply(y, self.path)  # type: ignore[no-untyped-call]
        held = tuple([t.detach() for t in saved])
        versions = tuple([t._version for t in held])
        inside = any([t.requires_grad for t in saved])  # noqa: C419 — a generator costs more
        # Keep the place of y in the graph. The output itself is held only if its product with the gradient is wanted and
        # cheaper than one with the parameters.
        node = y.grad_fn  # nodes of torch's own are theirs to keep; others take more
        own = node is None or isinstance(node, torch._C._FunctionBase)
        edge = get_gradient_edge(y) if node is None or own else GradientEdge(node, y.output_nr)
        use = Use(self.name, edge, held, versions, parts, rows, y.nbytes + more, inside)
        if self.outputs and product is not None and y.dtype in _EXACT and product.is_cheaper(y.numel() // self.size):
            use.output, use.version, use.product = y.detach(), y._version, product
        self.uses.append(use)
        return y


@dataclass
class HandOverTape(Tape):
    """Hands each use to a sink during the backward pass, with the tensors that autograd saved for it."""

    sink: Callable[[Use, Tensor], None] | None = None
    closed: bool = False  # the forward pass is over: a checkpoint's second forward only provides saved tensors

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
        """Puts a node behind y by which the tape hands the use over when the backward pass reaches it."""
        # How many rows belong to one sample must be known by now, or the parts could not be told apart.
        if rows is None:
            layout = self._layout
            if layout is UnknownLayout.UNSEEN:
                raise make_unasked_refusal(self.name)
            rows = layout.rows
        use = Use(self.name, get_gradient_edge(self.path), (), (), parts, rows)
        # A closed tape takes no more uses: a checkpoint runs layers again during the backward pass.
        if not self.closed:
            self.uses.append(use)

        def sink(tensors: tuple[Tensor, ...], g: Tensor) -> None:
            """Hands a use with its saved tensors to the tape's sink."""
            if self.sink is not None:
                self.sink(Use(use.name, use.edge, tensors, tuple(t._version for t in tensors), parts, use.rows), g)

        # The node passes y on unchanged, and hands the saved tensors over when its gradient arrives.
        out: Tensor = _HandOver.apply(y, self.path, sink, *[t.detach() for t in saved])  # type: ignore[no-untyped-call]
        return out


@dataclass
class ShapesTape(Tape):
    """Logs the shapes of what layers take and return, and records nothing."""

    shapes: list[tuple[int | ArgumentKey, torch.Size]] = field(default_factory=list)  # in the order of the calls
    places: set[Any] = field(default_factory=set)  # the graph's nodes at which layers would be recorded

    shapes_only = True

    def batch_dim(self, x: Tensor, *, only: int | None = None, several: bool = True) -> int:
        """Logs the shape of a layer's input."""
        self.shapes.append((self.index, x.shape))
        return 0

    def find_argument_layout(self, which: tuple[str, int], x: Tensor) -> Layout | None:
        """Logs the shape of one of several tensors of a layer."""
        self.shapes.append(((self.index, *which), x.shape))
        return _FIRST

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
        """Notes the place of y in the graph on a tape of shapes."""
        if y.grad_fn is not None:
            self.places.add(y.grad_fn)
        return y
