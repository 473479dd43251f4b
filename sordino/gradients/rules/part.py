"""The gradient of one parameter at one use, for B samples: three functions, and the rows they agree with.

A layer rule hands over one part per trainable parameter. `squared`, `dot` and `add_to` are what a training step needs;
`rows` is the plain per-sample gradient, from which the other three follow and against which they are tested. Parts of
one parameter (a layer called twice, two layers sharing a weight) are joined here by the parameter's identity.

    squared_i = ‖Σ_uses g_i‖²    dot_i = Σ_uses ⟨g_i, u⟩    add_to: out += Σ_i w_i Σ_uses g_i

Only the norm has cross terms, so only the norm needs the uses together.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from sordino.gradients.options import PerformanceOptions
from sordino.gradients.persample import accumulation_dtype

_RUN = 1024
"""Elements the fused norm takes at once; its error there is below 3e-7."""


class Part(Protocol):
    """The gradients of B samples with respect to one parameter, through one use of it."""

    def squared(self, options: PerformanceOptions) -> Tensor:
        """‖g_i‖², shape (B,)."""
        ...

    def dot(self, u: Tensor) -> Tensor:
        """⟨g_i, u⟩, shape (B,), for u of the parameter's shape."""
        ...

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Out = β out + Σ_i w_i g_i, for weights of shape (B,); β = 0 overwrites whatever was there."""
        ...

    def rows(self, where: slice | Tensor) -> Tensor:
        """The gradients of some samples, (b, *shape)."""
        ...

    def without(self, gone: Tensor) -> Part:
        """The same part with the samples of this mask (B,) set to zero, whatever they held."""
        ...


Joiner = Callable[[Sequence[Part]], Part | None]
_JOINERS: list[Joiner] = []


def joiner(function: Joiner) -> Joiner:
    """Register a way to join several uses of one parameter; it returns None for parts it does not know."""
    _JOINERS.append(function)
    return function


def joined(parts: Sequence[Part]) -> Part:
    """One part for all uses of a parameter."""
    if len(parts) == 1:
        return parts[0]
    for function in _JOINERS:
        result = function(parts)
        if result is not None:
            return result
    return Several(tuple(parts))


def full_precision(device: torch.device) -> AbstractContextManager[Any]:
    """Autocast off: under it the products of the norms would be computed in half precision, and read wrong."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


def lift(tensor: Tensor, like: Tensor | None = None) -> Tensor:
    """To the precision of accumulation; `like` first rounds to the precision the layer computed in (autocast)."""
    if like is not None and tensor.dtype != like.dtype:
        tensor = tensor.to(like.dtype)
    dtype = accumulation_dtype(tensor.dtype)
    return tensor if tensor.dtype == dtype else tensor.to(dtype)


def _length(x: Tensor, dim: int) -> Tensor:
    found: Tensor = torch.linalg.vector_norm(x, dim=dim)
    return found


def pieces(x: Tensor, n: int) -> tuple[Tensor, ...]:
    """Consecutive stretches of n rows; none of nothing."""
    return torch.split(x, n) if len(x) else ()


def two_dimensional(rows: Tensor) -> Tensor:
    """(B, …) to (B, n); the gradient of a scalar has n = 1."""
    return rows.unsqueeze(1) if rows.dim() == 1 else rows.flatten(1)


def square_sum(rows: Tensor) -> Tensor:
    """Σ x² per row of (B, …), one read and no copy.

    The fused norm reads low over long rows (1e-5 at 2.4M elements), so they go in short runs whose squares are added.
    """
    flat = two_dimensional(rows)
    n = flat.shape[1]
    if n <= _RUN:
        return _length(flat, 1).square_()
    whole = n // _RUN * _RUN
    runs = flat[:, :whole].view(flat.shape[0], -1, _RUN)
    total = _length(runs, 2).square_().sum(1)
    return total if whole == n else total + _length(flat[:, whole:], 1).square_()


def blank(tensor: Tensor, gone: Tensor) -> Tensor:
    """Rows of the mask become zero; 0 · nan would not."""
    return tensor.masked_fill(gone.view(-1, *[1] * (tensor.dim() - 1)), 0)


_SCRATCH = threading.local()


def scratch(elements: int, like: Tensor) -> Tensor:
    """A flat buffer that is used again and again: fresh memory of this size costs its page faults every time."""
    key = f"{like.dtype}{like.device}"
    held: Tensor | None = _SCRATCH.__dict__.get(key)
    if held is None or held.numel() < elements:
        held = _SCRATCH.__dict__[key] = torch.empty(elements, dtype=like.dtype, device=like.device)
    return held[:elements]


def per_pass(sample_elements: int, options: PerformanceOptions, itemsize: int = 4) -> int:
    """How many samples fit the scratch memory, at least one."""
    return max(1, options.scratch_bytes // max(1, sample_elements * itemsize))


@dataclass(frozen=True)
class Rows:
    """Gradients held in full: biases, norm layers, small or unusual parameters."""

    grads: Tensor  # (B, *shape)

    def squared(self, options: PerformanceOptions) -> Tensor:
        """Σ of squares."""
        return square_sum(self.grads)

    def dot(self, u: Tensor) -> Tensor:
        """Rows times a vector."""
        flat = two_dimensional(self.grads)
        return (flat * u.flatten().to(flat.dtype)).sum(1)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """A vector times rows."""
        flat = two_dimensional(self.grads)
        out.view(-1).addmv_(flat.t(), weights.to(flat.dtype), beta=beta)

    def rows(self, where: slice | Tensor) -> Tensor:
        """As held."""
        return self.grads[where]

    def without(self, gone: Tensor) -> Rows:
        """Masked."""
        return Rows(blank(self.grads, gone))


@dataclass(frozen=True)
class Several:
    """Uses of different kinds: the norm of their sum from rows, a few samples at a time."""

    parts: tuple[Part, ...]

    def squared(self, options: PerformanceOptions) -> Tensor:
        """‖Σ rows‖² in passes that fit the scratch memory."""
        first = self.parts[0].rows(slice(0, 1))
        step = per_pass(first.numel() * len(self.parts), options, first.element_size())
        found, start = [], 0
        while True:
            rows = self.rows(slice(start, start + step))
            if start and not rows.shape[0]:
                break
            found.append(square_sum(rows))
            start += step
        return torch.cat(found)

    def dot(self, u: Tensor) -> Tensor:
        """Linear: a sum over the uses."""
        return torch.stack([part.dot(u) for part in self.parts]).sum(0)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Linear: a sum over the uses."""
        for part in self.parts:
            part.add_to(out, weights, beta)
            beta = 1

    def rows(self, where: slice | Tensor) -> Tensor:
        """The rows of all uses, added."""
        total = self.parts[0].rows(where)
        for part in self.parts[1:]:
            total = total + part.rows(where)
        return total

    def without(self, gone: Tensor) -> Several:
        """Each use masked."""
        return Several(tuple(part.without(gone) for part in self.parts))


@dataclass(frozen=True)
class Block:
    """A part of the rows [start, stop) of a larger parameter, such as one projection of an attention's three."""

    part: Part
    start: int
    stop: int
    shape: torch.Size

    def squared(self, options: PerformanceOptions) -> Tensor:
        """The other rows are zero."""
        return self.part.squared(options)

    def dot(self, u: Tensor) -> Tensor:
        """Only the block counts."""
        return self.part.dot(u[self.start : self.stop])

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Only the block changes."""
        if not beta:
            out.zero_()
        self.part.add_to(out[self.start : self.stop], weights)

    def rows(self, where: slice | Tensor) -> Tensor:
        """The block within zeros."""
        inner = self.part.rows(where)
        whole = inner.new_zeros((inner.shape[0], *self.shape))
        whole[:, self.start : self.stop] = inner
        return whole

    def without(self, gone: Tensor) -> Block:
        """Masked."""
        return Block(self.part.without(gone), self.start, self.stop, self.shape)


@dataclass(frozen=True)
class Disjoint:
    """Blocks that do not overlap: their norms add."""

    blocks: tuple[Block, ...]

    def squared(self, options: PerformanceOptions) -> Tensor:
        """Pythagoras."""
        return torch.stack([block.squared(options) for block in self.blocks]).sum(0)

    def dot(self, u: Tensor) -> Tensor:
        """A sum."""
        return torch.stack([block.dot(u) for block in self.blocks]).sum(0)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Block by block."""
        if not beta:
            out.zero_()
        for block in self.blocks:
            block.add_to(out, weights)

    def rows(self, where: slice | Tensor) -> Tensor:
        """Added, being disjoint."""
        return torch.stack([block.rows(where) for block in self.blocks]).sum(0)

    def without(self, gone: Tensor) -> Disjoint:
        """Masked."""
        return Disjoint(tuple(block.without(gone) for block in self.blocks))


@dataclass(frozen=True)
class Frames:
    """k consecutive rows of the layer's input belong to one sample (frames of a clip, tokens folded into the batch)."""

    part: Part  # over B·k rows
    k: int

    def squared(self, options: PerformanceOptions) -> Tensor:
        """From rows, since the frames of a sample add up before the norm."""
        return Several((self,)).squared(options)

    def dot(self, u: Tensor) -> Tensor:
        """Linear in the frames."""
        return self.part.dot(u).view(-1, self.k).sum(1)

    def add_to(self, out: Tensor, weights: Tensor, beta: int = 1) -> None:
        """Every frame has its sample's weight."""
        self.part.add_to(out, weights.repeat_interleave(self.k), beta)

    def rows(self, where: slice | Tensor) -> Tensor:
        """The frames of a sample, added."""
        if isinstance(where, slice):
            inner = slice((where.start or 0) * self.k, None if where.stop is None else where.stop * self.k)
            rows = self.part.rows(inner)
        else:
            rows = self.part.rows((where[:, None] * self.k + torch.arange(self.k, device=where.device)).flatten())
        return rows.reshape(rows.shape[0] // self.k, self.k, *rows.shape[1:]).sum(1)

    def without(self, gone: Tensor) -> Frames:
        """Masked, all frames of a sample."""
        return Frames(self.part.without(gone.repeat_interleave(self.k)), self.k)


@joiner
def _rows(parts: Sequence[Part]) -> Part | None:
    if all(isinstance(part, Rows) for part in parts):
        return Rows(torch.stack([part.rows(slice(None)) for part in parts]).sum(0))
    return None


@joiner
def _disjoint(parts: Sequence[Part]) -> Part | None:
    blocks = [part for part in parts if isinstance(part, Block)]
    if len(blocks) < len(parts):
        return None
    spans: dict[tuple[int, int], list[Block]] = {}
    for block in blocks:
        spans.setdefault((block.start, block.stop), []).append(block)
    ordered = sorted(spans)
    if any(before[1] > after[0] for before, after in pairwise(ordered)):
        return None
    return Disjoint(
        tuple(Block(joined([b.part for b in group]), *span, group[0].shape) for span, group in spans.items())
    )
