"""Parameters that no layer with a rule owns, and uses outside their layer: `self.pos` added to every sample,
`self.cls.expand(…)`, `F.linear(x, self.emb.weight)`, a penalty in the loss.

While a forward pass runs, a tensor computed from parameters alone is shared by all samples, and autograd would add up
their gradients where it meets them. There, and only there, it is replaced by one copy per sample, a leaf of its own:

    x + f(θ)  becomes  x + copies,  copies_i = f(θ);   g_i(θ) = Jfᵀ · (gradient at copies_i)

Products with a batch are recorded as linear maps. Whatever else meets a shared tensor is left to autograd, which
leaves the parameter in the graph, where `graph.recorded_only` finds it: nothing is dropped silently.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten, tree_map

from sordino.gradients.captured.tape import Tape
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
    met: int = 0  # meetings of shared tensors and batches so far, the same in every pass

    def find(self, leaf: Any) -> _Shared | None:
        if not isinstance(leaf, Tensor):
            return None
        if isinstance(leaf, nn.Parameter) and self.tape.wants(leaf):
            return _Shared(leaf, (leaf,))
        return self.shared.get(id(leaf))


class LooseParameters(TorchFunctionMode):
    """Watches the operations of one forward pass."""

    def __init__(self, tape: Tape) -> None:
        """For one tape."""
        super().__init__()
        self.seen = _Seen(tape)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Let operations on no shared tensor pass."""
        kwargs = kwargs or {}
        tape, seen = self.seen.tape, self.seen
        if tape.index != -1 or not torch.is_grad_enabled():  # inside a rule, or nothing to record
            return func(*args, **kwargs)
        leaves, _ = tree_flatten((args, kwargs))
        found = [s for s in map(seen.find, leaves) if s is not None]
        if not found:
            return func(*args, **kwargs)
        others = [t for t in leaves if isinstance(t, Tensor) and seen.find(t) is None]
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
        if func is _LINEAR or func in _PRODUCTS:
            return self._product(func, args, kwargs, others)
        if func not in _ELEMENTWISE:
            return func(*args, **kwargs)
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

    def _product(self, func: Any, args: Any, kwargs: Any, others: list[Tensor]) -> Any:
        tape, x = self.seen.tape, args[0]
        dim = self._layout(x)
        weight = args[1] if len(args) > 1 else kwargs.get("weight")
        bias = (args[2] if len(args) > 2 else kwargs.get("bias")) if func is _LINEAR else None
        plain = isinstance(weight, nn.Parameter) and weight.dim() == 2 and x is others[0] and len(others) == 1
        plain = plain and x.dim() >= 2 and dim != x.dim() - 1 and (bias is None or isinstance(bias, nn.Parameter))
        if tape.shapes_only or dim is None or not plain:
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
