"""What is summed and released: one tensor per trainable parameter, in float32 or better, often views of one buffer."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sordino.distributed.row_shard import local

Grads = dict[str, Tensor]
"""One tensor per trainable parameter, by the parameter's name."""


@dataclass(frozen=True)
class Summed:
    """A sum over chunks in float64, and the tensors of its own type that it goes to once noise is on it."""

    values: Grads
    narrow: Grads  # what they hold is of no use any more


@dataclass(frozen=True)
class TwoPartSum:
    """The sums of two chunks, each in float32; what they come to together is a number of float64, and not written out."""

    first: Grads
    second: Grads

    def widened(self) -> Summed:
        """Written out."""
        wide = {name: torch.empty_like(tensor, dtype=torch.float64) for name, tensor in self.first.items()}
        for out, a, b in stretches(wide, self.first, self.second):
            torch.add(a.double(), b, out=out)
        return Summed(wide, self.first)


class Accumulator:
    """Adds up the sums of chunks: the only one as it is, more of them in float64.

    In float32 the rounding of 200 chunks of 256 equal records comes to a tenth of the bound.
    """

    def __init__(self) -> None:
        self._first: Grads | None = None
        self._second: Grads | None = None
        self._wide: Summed | None = None

    def room(self) -> Grads | None:
        """Where the next chunk is to be added; None: in room of its own."""
        if self._first is None or self.dtype is torch.float64:
            return self._first
        if self._second is not None:
            self._wide, self._second = TwoPartSum(self._first, self._second).widened(), None
        if self._wide is None:
            return None
        for tensor in self._first.values():
            tensor.zero_()
        return self._first

    def take(self, chunk: Grads) -> None:
        """The sum of one more chunk, in the room that was given."""
        if self._wide is not None:
            for wide, added in stretches(self._wide.values, chunk):
                wide.add_(added.double())
        elif self._first is None or self.dtype is torch.float64:
            self._first = chunk
        else:
            self._second = chunk

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest type that a chunk was added up in."""
        wide = self._first is not None and all(t.dtype is torch.float64 for t in self._first.values())
        return torch.float64 if wide else torch.float32

    @property
    def total(self) -> Grads | TwoPartSum | Summed:
        """The sum."""
        assert self._first is not None, "a lot has at least one part"
        if self._wide is not None:
            return self._wide
        return self._first if self._second is None else TwoPartSum(self._first, self._second)


def rounded(total: Grads | TwoPartSum | Summed) -> Grads:
    """The sum in its own type."""
    if isinstance(total, TwoPartSum):
        total = total.widened()
    if not isinstance(total, Summed):
        return total
    for name, tensor in total.narrow.items():
        tensor.copy_(total.values[name])
    return total.narrow


_STRETCH = 1 << 15
"""Elements that stay in the cache while several things are done to them."""


def stretches(*sums: Grads) -> Iterator[tuple[Tensor, ...]]:
    """The same coordinates of several, as tensors that share their memory, a few at a time."""
    buffers = [base for grads in sums if (base := _buffer(grads)) is not None]
    if len(buffers) == len(sums) and len({_places(grads) for grads in sums}) == 1:
        yield from _cut(buffers)
        return
    for name in sums[0]:
        yield from _cut([grads[name] for grads in sums])


def _cut(tensors: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    if tensors[0].numel() <= _STRETCH or not all(t.is_contiguous() for t in tensors):
        yield tuple(tensors)
    else:
        yield from zip(*[t.view(-1).split(_STRETCH) for t in tensors], strict=True)


def _buffer(grads: Grads) -> Tensor | None:
    """The one buffer behind these tensors, if nothing else is in it."""
    base = flat(grads)
    if base is None or base.numel() - sum([t.numel() for t in grads.values()]) >= ALIGNMENT * len(grads):
        return None
    return base if base.is_contiguous() and not base.storage_offset() else None


def _places(grads: Grads) -> tuple[tuple[str, Any, int], ...]:
    return tuple([(name, t.storage_offset(), t.numel()) for name, t in grads.items()])


def cleared_like(grads: Grads) -> Grads:
    """Zeros of the same shapes, in one buffer if these are."""
    base = _buffer(grads)
    if base is None:
        return {name: torch.zeros_like(tensor) for name, tensor in grads.items()}
    room = torch.zeros_like(base)
    return {name: torch.as_strided(room, t.shape, t.stride(), t.storage_offset()) for name, t in grads.items()}


ALIGNMENT = 16
"""Elements: in a buffer behind many tensors every one starts on a cache line."""


@cache
def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Sums and norms are kept in float32 at least: in half precision they go wrong by more than the bound."""
    return torch.promote_types(dtype, torch.float32)


def divide_(grads: dict[str, Tensor], by: float) -> None:
    """Divide all in place: by one product over the buffer behind them, where there is one and nothing else is in it."""
    if by == 1.0 or not grads:
        return
    grads = {name: local(tensor) for name, tensor in grads.items()}
    base = _buffer(grads)
    if base is None:
        torch._foreach_mul_(list(grads.values()), 1 / by)
    else:
        base.mul_(1 / by)


def flat(grads: dict[str, Tensor]) -> Tensor | None:
    """The one buffer behind these tensors (a 1-D tensor with a few zeros between), or None if they have none in common.

    >>> both = torch.zeros(32)
    >>> flat({"a": both[:6].view(2, 3), "b": both[16:20]}).shape
    torch.Size([32])
    """
    tensors = list(grads.values())
    base = tensors[0]._base if tensors else None
    if base is None or any(t._base is not base for t in tensors):
        return None
    return base
