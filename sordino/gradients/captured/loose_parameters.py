"""Parameters that no layer with a rule owns, and uses outside their layer: `self.pos` added to every sample,
`self.cls.expand(…)`, `F.linear(x, self.emb.weight)`, a penalty in the loss.

While a forward pass runs, a tensor computed from parameters alone is shared by all samples, and autograd would add up
their gradients where it meets them. There, and only there, it is replaced by one copy per sample, a leaf of its own:

    x + f(θ)  becomes  x + copies,  copies_i = f(θ);   g_i(θ) = Jfᵀ · (gradient at copies_i)

Products of a parameter with a batch are recorded as linear maps. Any other function of shared tensors and a batch
(`F.linear(x, 2 * w)`, `x @ w.t()`, weights that another module made) runs under vmap, one sample and one copy at a time.
What vmap cannot do is left to autograd, which leaves the parameter in the graph, where `graph.recorded_only` finds it:
nothing is dropped silently. Buffers and frozen parameters are nobody's sample.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map, tree_unflatten

from sordino.gradients.captured.tape import Layout, Tape
from sordino.gradients.formulas.matrix_product import Matmul
from sordino.gradients.formulas.part import Part, lift
from sordino.gradients.layers.linear import affine, samples_first

_ELEMENTWISE: frozenset[Any] = frozenset(
    getattr(owner, name)
    for owner in (torch, Tensor)
    for name in ("add", "sub", "mul", "div", "true_divide", "multiply", "subtract", "divide")
) | frozenset(getattr(Tensor, f"__{side}{name}__") for name in ("add", "sub", "mul", "truediv") for side in ("", "r"))
_EXPANDING = frozenset((Tensor.expand, Tensor.expand_as, Tensor.repeat))
_PRODUCTS = frozenset((torch.matmul, Tensor.matmul, Tensor.__matmul__))
_LINEAR = torch.nn.functional.linear
_STAYS_CONSTANT = _ELEMENTWISE | frozenset(
    (Tensor.clone, torch.clone, Tensor.detach, Tensor.to, Tensor.float, Tensor.t, torch.t, Tensor.transpose)
)
"""Of constants alone, constants that have no sample dimension whatever the batch."""
_ASKING = frozenset(
    (torch.autograd.grad, Tensor.backward, Tensor.register_hook, Tensor.size, Tensor.dim, Tensor.requires_grad_)
)


@dataclass(frozen=True)
class _Shared:
    """A tensor computed from parameters alone, and those parameters."""

    tensor: Tensor
    of: tuple[nn.Parameter, ...]


@dataclass
class _Seen:
    """What one forward pass has computed from parameters alone so far."""

    tape: Tape
    shared: dict[int, _Shared] = field(default_factory=dict)
    constants: dict[int, Tensor] = field(default_factory=dict)  # held, so that an identity is not given out again
    met: int = 0  # meetings of shared tensors and batches so far, the same in every pass

    def find(self, leaf: Any) -> _Shared | None:
        if not isinstance(leaf, Tensor):
            return None
        if isinstance(leaf, nn.Parameter) and self.tape.wants(leaf):
            return _Shared(leaf, (leaf,))
        return self.shared.get(id(leaf))


class LooseParameters(TorchFunctionMode):
    """Watches the operations of one forward pass."""

    def __init__(self, tape: Tape, constants: Iterable[Tensor] = ()) -> None:
        """For one tape; constants are the model's buffers and frozen parameters."""
        super().__init__()
        self.seen = _Seen(tape, constants={id(t): t for t in constants})

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let operations on no shared tensor pass."""
        kwargs = kwargs or {}
        tape, seen = self.seen.tape, self.seen
        if tape.index != -1 or not torch.is_grad_enabled():  # inside a rule, or nothing to record
            return func(*args, **kwargs)
        leaves, _ = tree_flatten((args, kwargs))
        found = [s for s in map(seen.find, leaves) if s is not None]
        others = [t for t in leaves if isinstance(t, Tensor) and seen.find(t) is None]
        if not found:
            out = func(*args, **kwargs)
            if func in _STAYS_CONSTANT and all(id(t) in seen.constants for t in others) and isinstance(out, Tensor):
                seen.constants[id(out)] = out
            return out
        others = [t for t in others if id(t) not in seen.constants]
        alone = not others or tape.sharing
        if alone and func not in _EXPANDING:
            return self._derive(func(*args, **kwargs), found)
        if alone:
            return self._expand(func, args, kwargs, found)
        return self._meet(func, args, kwargs, others)

    def _derive(self, out: Any, found: list[_Shared]) -> Any:
        of = tuple(dict.fromkeys(p for s in found for p in s.of))
        for leaf in tree_flatten(out)[0]:
            if isinstance(leaf, Tensor) and leaf.requires_grad and not isinstance(leaf, nn.Parameter):
                self.seen.shared[id(leaf)] = _Shared(leaf, of)
        return out

    def _layout(self, tensor: Tensor) -> int | None:
        key = ("loose", self.seen.met)
        self.seen.met += 1
        return self.seen.tape.argument_dim(key, tensor)

    def _expand(self, func: Any, args: Any, kwargs: Any, found: list[_Shared]) -> Any:
        out = func(*args, **kwargs)
        dim = self._layout(out)
        source = found[0]
        before = [1] * (out.dim() - source.tensor.dim()) + list(source.tensor.shape)
        if self.seen.tape.shapes_only:  # the dimension is not known yet: both runs must at least agree on what grew
            grew = any(b == 1 and n == self.seen.tape.size for b, n in zip(before, out.shape, strict=True))
            return out if grew else self._derive(out, found)
        kept = [n for j, n in enumerate(before) if j != dim]
        after = [n for j, n in enumerate(out.shape) if j != dim]
        stretched = [j + 1 for j, (b, a) in enumerate(zip(kept, after, strict=True)) if b == 1 and a > 1]
        repeated = any(b not in (1, a) for b, a in zip(kept, after, strict=True))
        if dim is None or before[dim] != 1 or repeated:
            return self._derive(out, found)
        copies = source.tensor.detach().requires_grad_().expand(out.shape).clone()

        def rows(g: Tensor) -> Tensor:
            moved = g.movedim(dim, 0)
            moved = moved.sum(stretched, keepdim=True) if stretched else moved
            return moved.reshape(g.shape[dim], *source.tensor.shape)

        return self._record(copies, source, rows)

    def _meet(self, func: Any, args: Any, kwargs: Any, others: list[Tensor]) -> Any:
        tape = self.seen.tape
        if (func is _LINEAR or func in _PRODUCTS) and _plain_product(func, args, kwargs, others):
            return self._product(func, args, kwargs)
        if func not in _ELEMENTWISE:
            return func(*args, **kwargs) if _untouched(func, kwargs) else self._mapped(func, args, kwargs, others)
        out = func(*args, **kwargs)
        dim = self._layout(out)
        if tape.shapes_only or dim is None:
            return out

        def copied(leaf: Any) -> Any:
            source = self.seen.find(leaf)
            if source is None:
                return leaf
            shape = [1] * (out.dim() - leaf.dim()) + list(leaf.shape)
            if shape[dim] != 1:
                return leaf  # stays in the graph, and is refused
            view = source.tensor.detach().requires_grad_().view(shape)
            shape[dim] = tape.size
            return self._record(
                view.expand(shape).clone(), source, lambda g: g.movedim(dim, 0).reshape(tape.size, *leaf.shape)
            )

        return func(*tree_map(copied, args), **tree_map(copied, kwargs))

    def _where(self, which: str, tensor: Tensor | None) -> Layout | None:
        """The layout of a tensor of a mapped function; not known in a pass for shapes."""
        key, tape = (-1, which, self.seen.met), self.seen.tape
        self.seen.met += 1
        if not tape.shapes_only:
            return tape.layout_of(key)
        if tensor is not None:
            tape.shapes.append((key, tensor.shape))
        return None

    def _mapped(self, func: Any, args: Any, kwargs: Any, others: list[Tensor]) -> Any:
        """Any function of shared tensors and a batch: one copy of the shared ones for each sample, under vmap."""
        tape, seen, size = self.seen.tape, self.seen, self.seen.tape.size
        own = {id(t): self._where("mapped in", t) for t in others}
        if tape.shapes_only:
            out = func(*args, **kwargs)
            self._where("mapped out", out if isinstance(out, Tensor) else None)
            return out
        where = self._where("mapped out", None)
        if where is None or all(layout is None for layout in own.values()):
            return func(*args, **kwargs)  # stays in the graph, and is refused
        leaves, spec = tree_flatten((args, kwargs))
        places, given, dims = [], list[Tensor](), list[int | None]()
        for j, leaf in enumerate(leaves):
            source, layout = seen.find(leaf), own.get(id(leaf))
            if source is not None:
                copies = source.tensor.detach().requires_grad_().expand(size, *source.tensor.shape).clone()
                given.append(self._record(copies, source, lambda g: g))
            elif layout is not None:  # the dimension stays, with one sample's rows
                given.append(leaf.unflatten(layout.dim, (size, layout.rows)).movedim(layout.dim, 0))
            else:
                continue
            places.append(j)
            dims.append(0)

        def one(*tensors: Tensor) -> Any:
            mine = list(leaves)
            for j, tensor in zip(places, tensors, strict=True):
                mine[j] = tensor
            both: Any = tree_unflatten(mine, spec)
            return func(*both[0], **both[1])

        try:
            with warnings.catch_warnings():  # operations that vmap runs one by one are slow, not wrong
                warnings.filterwarnings("ignore", message="There is a performance drop")
                made = torch.func.vmap(one, in_dims=tuple(dims), randomness="different")(*given)
            return made.movedim(0, where.dim).flatten(where.dim, where.dim + 1)
        except (RuntimeError, ValueError, IndexError, AttributeError, TypeError):
            return func(*args, **kwargs)  # stays in the graph, and is refused

    def _product(self, func: Any, args: Any, kwargs: Any) -> Any:
        tape, x = self.seen.tape, args[0]
        dim = self._layout(x)
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        bias = (args[2] if len(args) > 2 else kwargs.get("bias")) if func is _LINEAR else None
        if tape.shapes_only or dim is None or dim == x.dim() - 1:
            return func(*args, **kwargs)
        if func is _LINEAR:
            return affine(tape, x, weight, bias, dim)
        y = x.reshape(-1, x.shape[-1]) @ tape.leaf(weight, x)  # (…, p)
        lead, size = x.shape[:-1], tape.size

        def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
            rows = samples_first(lift(g).view(*lead, -1), dim, size)
            inputs = samples_first(lift(saved[0], g), dim, size)
            return {weight: Matmul(rows, inputs, workspace=tape.workspace)}  # (d, p): the roles are exchanged

        return tape.record(y, (x,), parts, rows=1).view(*lead, -1)

    def _record(self, copies: Tensor, source: _Shared, rows: Callable[[Tensor], Tensor]) -> Tensor:
        def parts(saved: tuple[Tensor, ...], g: Tensor) -> dict[Tensor, Part | Tensor]:
            found = lift(rows(g))  # (B, *shape of the shared tensor)
            if isinstance(source.tensor, nn.Parameter):
                return {source.of[0]: found}
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="There is a performance drop")
                pulled = torch.autograd.grad(
                    source.tensor,
                    source.of,
                    found.to(source.tensor.dtype),
                    is_grads_batched=True,
                    retain_graph=True,
                    allow_unused=True,
                )
            return {p: lift(t) for p, t in zip(source.of, pulled, strict=True) if t is not None}

        return self.seen.tape.record(copies, (), parts, rows=1)


def _plain_product(func: Any, args: Any, kwargs: Any, others: list[Tensor]) -> bool:
    """A batch times a parameter of two dimensions, and perhaps another parameter added."""
    weight = args[1] if len(args) > 1 else kwargs.get("weight")
    bias = (args[2] if len(args) > 2 else kwargs.get("bias")) if func is _LINEAR else None
    batch = bool(args) and len(others) == 1 and args[0] is others[0] and args[0].dim() >= 2
    plain = isinstance(weight, nn.Parameter) and weight.dim() == 2
    return batch and plain and (bias is None or isinstance(bias, nn.Parameter))


def _untouched(func: Any, kwargs: Any) -> bool:
    """Functions that vmap must not see: they write, or ask for no value."""
    name = getattr(func, "__name__", "")
    writes = "out" in kwargs or name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    return writes or func in _ASKING or name in ("__get__", "__set__")
