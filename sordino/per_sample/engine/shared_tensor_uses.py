"""Records the operation in which a tensor shared by all samples meets a batch.

    x + f(θ)                  becomes  x + copies,  copies_i = f(θ);   g_i(θ) = Jfᵀ · (gradient at copies_i)
    linear(x, f(θ)), conv, …  is a layer whose weight is f(θ);         g_i(θ) = Jfᵀ · (the layer's rows)
    any other function        runs under vmap, one sample and one copy at a time

What vmap cannot do is left to autograd, and refused.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from sordino.per_sample.formulas.compound_parts import join_parts
from sordino.per_sample.formulas.gradient_part import Part, lift_precision
from sordino.per_sample.formulas.pulled_back import PulledBack, pull_back_rows
from sordino.per_sample.layers.functional_layers import FUNCTIONS
from sordino.per_sample.recording.sample_layout import FoundLayout, Layout, UnknownLayout
from sordino.per_sample.recording.tape import Tape, to_parts

_SIGNS = ("add", "sub", "mul", "truediv")
_FORMULAS = ("add", "sub", "mul", "div", "true_divide", "multiply", "subtract", "divide", "pow", "where", "lerp")
_POINTWISE: frozenset[Any] = (
    frozenset(getattr(owner, name) for owner in (torch, Tensor) for name in (*_FORMULAS, "maximum", "minimum"))
    | frozenset(getattr(Tensor, f"__{side}{name}__") for name in _SIGNS for side in ("", "r"))
    | frozenset((Tensor.__pow__, torch.addcmul, torch.addcdiv))
)
_WRITING = frozenset(getattr(Tensor, f"__i{name}__") for name in _SIGNS) | frozenset(
    (Tensor.add_, Tensor.sub_, Tensor.mul_, Tensor.div_)
)
_TILING = frozenset((Tensor.expand, Tensor.expand_as, Tensor.repeat, torch.broadcast_to, Tensor.broadcast_to))
_ATTENTION = torch.nn.functional.scaled_dot_product_attention


@dataclass(frozen=True)
class Shared:
    """A tensor computed from parameters alone, and those parameters."""

    tensor: Tensor
    parameters: tuple[nn.Parameter, ...]

    @property
    def is_parameter(self) -> bool:
        """Whether it is a parameter itself."""
        return self.parameters[0] is self.tensor

    def pull_back(self, gradients: Part | Tensor) -> dict[Tensor, Part | Tensor]:
        """Returns the parameters' per-sample gradients from those of the shared tensor that was computed from them."""
        if self.is_parameter:
            return {self.parameters[0]: gradients}
        if isinstance(gradients, Tensor):
            return {
                p: lift_precision(t)
                for p, t in pull_back_rows(self.tensor, self.parameters, lift_precision(gradients)).items()
            }
        return {p: PulledBack(gradients, self.tensor, p) for p in self.parameters}


@dataclass(frozen=True)
class FunctionCall:
    """A call: its function and arguments, which of them are shared, and where the others have their samples."""

    func: Any
    args: Any
    kwargs: Any
    find: Callable[[Any], Shared | None]
    layouts: Mapping[int, FoundLayout]  # by identity, of the tensors that are not shared

    def run(self) -> Any:
        """Calls the function as it was called."""
        return self.func(*self.args, **self.kwargs)

    def run_with_changed_arguments(self, change: Callable[[Any], Any]) -> Any:
        """Calls the function with some of the arguments changed."""
        return self.func(*tree_map(change, self.args), **tree_map(change, self.kwargs))


def record_meeting(tape: Tape, call: FunctionCall, made: Sequence[FoundLayout]) -> Any:
    """Returns the value of a function in which a shared tensor meets a batch, with the use recorded, or unrecorded
    where recording is impossible.

    `made` says where the results have their samples.
    """
    # Results whose samples cannot be found stay in the graph, where they are refused.
    output_layouts = [layout for layout in made if layout is not UnknownLayout.ODD]
    if len(output_layouts) < len(made) or UnknownLayout.ODD in call.layouts.values():
        return call.run()
    # Operations whose shared tensor can be replaced by one copy per sample.
    func, where = call.func, output_layouts[0]
    if func in _TILING and where is not None:
        return _record_tiling(tape, call, where)
    if where is not None and (func in _POINTWISE or func in _WRITING or func is _ATTENTION):
        return _record_pointwise(tape, call, where)
    if func is Tensor.__setitem__ and where is not None:
        return _record_assignment(tape, call, where)
    # Functions that are a layer's computation use the layer's formulas; all others run under vmap.
    layer = FUNCTIONS.get(func)
    if layer is not None:
        recorded = layer(_Recorder(tape, call), call)
        if recorded is not None:
            return recorded
    return call.run() if _must_not_vmap(func, call.kwargs) else _run_under_vmap(tape, call, output_layouts)


def _record_tiling(tape: Tape, given: FunctionCall, where: Layout) -> Tensor:
    """Records the use of a shared tensor in `p.expand(B, …)` and `p.repeat(B, 1)`, whose result is one copy per sample."""
    out: Tensor = given.run()
    source = given.find(given.args[0])
    if source is None:  # `x.expand_as(p)`
        return out
    # Check that each sample gets a whole copy; any other tiling stays in the graph and is refused.
    dim, rows, size = where.dim, where.rows, tape.size
    before = [1] * (out.dim() - source.tensor.dim()) + list(source.tensor.shape)
    other_dims = [(b, a) for j, (b, a) in enumerate(zip(before, out.shape, strict=True)) if j != dim]
    if before[dim] not in (1, rows) or out.shape[dim] != size * rows or any(b not in (1, a) for b, a in other_dims):
        return out
    # Make the copies from a detached tensor, so that the gradient arrives at the copies.
    tall = source.tensor.detach().requires_grad_().view(before)
    shape = [*out.shape[:dim], size, rows, *out.shape[dim + 1 :]]
    copies = tall.unsqueeze(dim).expand(shape).reshape(out.shape)
    stretched = [j + 1 for j, (b, a) in enumerate(zip(before, out.shape, strict=True)) if b == 1 and a > 1 and j != dim]

    # Several rows of a sample share its copy, so their gradients add up too.
    if before[dim] == 1 and rows > 1:
        stretched.append(dim + 1)

    def sum_stretched(g: Tensor) -> Tensor:
        """Returns the gradient of each sample's copy of a shared tensor, added up along dimensions that were stretched."""
        each = g.unflatten(dim, (size, rows)).movedim(dim, 0)
        each = each.sum(stretched, keepdim=True) if stretched else each
        rows_of_each: Tensor = each.reshape(size, *source.tensor.shape)
        return rows_of_each

    return _record_copies(tape, copies.clone() if copies._is_view() else copies, source, sum_stretched)


def _record_pointwise(tape: Tape, given: FunctionCall, where: Layout) -> Any:
    """Records a pointwise use: replaces each shared tensor that is the same along the samples' dimension by one copy
    per sample.
    """
    func = given.func
    if func in _WRITING and given.find(given.args[0]) is not None:
        return given.run()
    if func is _ATTENTION and any(given.find(t) is not None for t in given.args[:3]):
        return _run_under_vmap(tape, given, (where,))
    ranks = max(t.dim() for t in tree_flatten((given.args, given.kwargs))[0] if isinstance(t, Tensor))
    return given.run_with_changed_arguments(_make_copier(tape, given, where, ranks))


def _record_assignment(tape: Tape, given: FunctionCall, where: Layout) -> None:
    """Records the use of a shared tensor in `x[:, 0] = p`, where each sample gets a copy of its own."""
    x, index, value = given.args
    if given.find(x) is not None:
        given.run()
    else:
        given.func(x, index, _make_copier(tape, given, where, x[index].dim())(value))


def _make_copier(tape: Tape, given: FunctionCall, where: Layout, ranks: int) -> Callable[[Any], Any]:
    """Returns a function from shared tensors to one copy per sample, to be used with tensors of `ranks` dimensions."""
    dim, rows, size = where.dim, where.rows, tape.size

    def copy_per_sample(leaf: Any) -> Any:
        """Returns one recorded copy per sample of a shared tensor, and anything else as it is."""
        source = given.find(leaf)
        if source is None:
            return leaf
        # A shared tensor that differs along the samples' dimension cannot be copied; it stays in the graph.
        shape = [1] * (ranks - leaf.dim()) + list(leaf.shape)
        if shape[dim] != 1:
            return leaf  # stays in the graph, and is refused
        tall = source.tensor.detach().requires_grad_().view(shape)
        shape[dim] = size
        if rows == 1:
            copies = tall.expand(shape).clone()
            return _record_copies(tape, copies, source, lambda g: g.movedim(dim, 0).reshape(size, *leaf.shape))
        # Several rows per sample: each row gets the copy of its sample, and their gradients are added up.
        copies = tall.expand(shape).repeat_interleave(rows, dim)

        def sum_rows(g: Tensor) -> Tensor:
            """Returns the gradient of each sample's copy, added up over the sample's rows."""
            each: Tensor = g.unflatten(dim, (size, rows)).sum(dim + 1).movedim(dim, 0)
            return each.reshape(size, *leaf.shape)

        return _record_copies(tape, copies, source, sum_rows)

    return copy_per_sample


def _run_under_vmap(tape: Tape, given: FunctionCall, made: Sequence[Layout | None]) -> Any:
    """Runs any function in which shared tensors meet a batch under vmap, with one copy of the shared ones per sample."""
    size = tape.size
    if all(layout is None for layout in given.layouts.values()):
        return given.run()  # stays in the graph, and is refused
    # Give every shared tensor a copy per sample, and bring the samples of the others to the front.
    leaves, spec = tree_flatten((given.args, given.kwargs))
    places, mapped_tensors = [], list[Tensor]()
    for j, leaf in enumerate(leaves):
        source, layout = given.find(leaf), given.layouts.get(id(leaf))
        if source is not None:
            copies = source.tensor.detach().requires_grad_().expand(size, *source.tensor.shape).clone()
            mapped_tensors.append(_record_copies(tape, copies, source, lambda g: g))
        elif isinstance(layout, Layout):  # the dimension stays, with one sample's rows
            mapped_tensors.append(leaf.unflatten(layout.dim, (size, layout.rows)).movedim(layout.dim, 0))
        else:
            continue
        places.append(j)
    structure: list[Any] = []

    def run_sample(*tensors: Tensor) -> tuple[Tensor, ...]:
        """Calls the function that uses a shared tensor for one sample, with that sample's tensors in their places."""
        sample_leaves = list(leaves)
        for j, tensor in zip(places, tensors, strict=True):
            sample_leaves[j] = tensor
        both: Any = tree_unflatten(sample_leaves, spec)
        values, shape = tree_flatten(given.func(*both[0], **both[1]))
        structure[:] = [shape]
        return tuple(values)

    # Map over the samples and put their dimension back where the first batch had it.
    try:
        with warnings.catch_warnings():  # operations that vmap runs one by one are slow, not wrong
            warnings.filterwarnings("ignore", message="There is a performance drop")
            out = torch.func.vmap(run_sample, in_dims=0, randomness="different")(*mapped_tensors)
        joined = [
            t if layout is None else t.movedim(0, layout.dim).flatten(layout.dim, layout.dim + 1)
            for t, layout in zip(out, made, strict=True)
        ]
        return tree_unflatten(joined, structure[0])
    except (RuntimeError, ValueError, IndexError, AttributeError, TypeError):
        return given.run()  # stays in the graph, and is refused


def _record_copies(tape: Tape, copies: Tensor, source: Shared, rows: Callable[[Tensor], Tensor]) -> Tensor:
    """Records the use of copies of a shared tensor; `rows` turns the gradient at them into one per sample."""

    def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
        return source.pull_back(lift_precision(rows(g)))  # (B, *shape of the shared tensor)

    found: Tensor = tape.record(copies, (), parts, rows=1)
    return found


class _Recorder:
    """Stands in for the tape, for a layer whose weights may be functions of parameters."""

    def __init__(self, tape: Tape, given: FunctionCall) -> None:
        self._tape, self._given = tape, given

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tape, name)

    def wants(self, weight: Tensor | None) -> bool:
        """Returns whether a weight is shared: everything that is shared is wanted."""
        return weight is not None and self._given.find(weight) is not None

    def record(self, y: Tensor, saved: tuple[Tensor, ...], parts: Any, *, rows: int = 1, product: Any = None) -> Tensor:
        """Records the use of a shared tensor on the tape, with its gradients pulled back to the parameters behind it."""

        def entries(held: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
            """Returns the parts of the parameters behind a shared tensor, joining those of weights that depend on the
            same one.
            """
            found: dict[Tensor, Part | Tensor] = {}
            # A weight may be computed from several parameters, and a parameter may be behind several weights.
            for weight, part in parts(held, g).items():
                source = self._given.find(weight)
                assert source is not None, "only what is wanted is found"
                for p, own in source.pull_back(part).items():
                    found[p] = join_parts([each[p] for each in map(to_parts, (found, {p: own})) if p in each])
            return found

        # ⟨g, θ⟩ from outputs holds only where the weight is the parameter itself.
        plain = all(s.is_parameter for t in self._call_leaves() if (s := self._given.find(t)) is not None)
        return self._tape.record(y, saved, entries, rows=rows, product=product if plain else None)

    def _call_leaves(self) -> list[Any]:
        """Returns all arguments of the call, flattened."""
        return tree_flatten((self._given.args, self._given.kwargs))[0]


def _must_not_vmap(func: Any, kwargs: Any) -> bool:
    """Returns whether vmap must not see a function that uses a shared tensor, because it writes or asks for no value."""
    name = getattr(func, "__name__", "")
    writes = "out" in kwargs or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    return writes or name in ("__get__", "__set__")
