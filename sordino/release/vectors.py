"""Vectors that are summed and released: one tensor per trainable parameter.

They are kept in float32 or better, often as views of one buffer.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

from sordino.distributed.row_shard import local_rows

Grads = dict[str, Tensor]
"""One tensor per trainable parameter, by the parameter's name."""


@dataclass(frozen=True)
class WideSum:
    """A sum over chunks in float64, and the tensors of its own type that it goes to once noise is on it."""

    values: Grads
    narrow: Grads  # what they hold is of no use any more


@dataclass(frozen=True)
class TwoPartSum:
    """The sums of two chunks, each in float32; what they come to together is a number of float64, and not written out."""

    first: Grads
    second: Grads

    def to_float64(self) -> WideSum:
        """Returns the sum of released vectors in float64; it is kept as float32 values and their rounding remainders."""
        wide = {name: torch.empty_like(tensor, dtype=torch.float64) for name, tensor in self.first.items()}
        for out, a, b in iterate_together(wide, self.first, self.second):
            torch.add(a.double(), b, out=out)
        return WideSum(wide, self.first)


class Accumulator:
    """Adds up the sums of chunks: the only one as it is, more of them in float64.

    In float32 the rounding of 200 chunks of 256 equal records comes to a tenth of the bound.
    """

    def __init__(self) -> None:
        self._first: Grads | None = None
        self._second: Grads | None = None
        self._wide: WideSum | None = None

    def next_buffer(self) -> Grads | None:
        """Returns the vectors to which the next chunk of a sum is to be added, or None if it should allocate its own."""
        # The first chunk brings its own memory; in float64 later chunks are added to it directly.
        if self._first is None or self.dtype is torch.float64:
            return self._first
        # A third chunk begins: the first two are added in float64 and their memory is used again.
        if self._second is not None:
            self._wide, self._second = TwoPartSum(self._first, self._second).to_float64(), None
        if self._wide is None:
            return None
        for tensor in self._first.values():
            tensor.zero_()
        return self._first

    def add_chunk(self, chunk: Grads) -> None:
        """Adds the vectors of one more chunk, which lie in the tensors that `next_buffer` gave, to the sum."""
        # From the third chunk on everything is added in float64, and each chunk is rounded once.
        if self._wide is not None:
            for wide, added in iterate_together(self._wide.values, chunk):
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
    def total(self) -> Grads | TwoPartSum | WideSum:
        """The sum of the vectors of all chunks, ready to be released."""
        assert self._first is not None, "a lot has at least one part"
        if self._wide is not None:
            return self._wide
        return self._first if self._second is None else TwoPartSum(self._first, self._second)


def to_own_dtype(total: Grads | TwoPartSum | WideSum) -> Grads:
    """Returns a sum of vectors in the type of its own tensors."""
    if isinstance(total, TwoPartSum):
        total = total.to_float64()
    if not isinstance(total, WideSum):
        return total
    for name, tensor in total.narrow.items():
        tensor.copy_(total.values[name])
    return total.narrow


_STRETCH = 1 << 15
"""Elements that stay in the cache while several things are done to them."""


def iterate_together(*sums: Grads) -> Iterator[tuple[Tensor, ...]]:
    """Yields the coordinates of several sums of vectors in step, a cache-sized piece at a time, as views of their
    memory.
    """
    # One buffer behind all tensors is gone through in one stretch; otherwise tensor by tensor.
    buffers = [base for grads in sums if (base := _exclusive_buffer(grads)) is not None]
    if len(buffers) == len(sums) and len({_buffer_layout(grads) for grads in sums}) == 1:
        yield from _split_together(buffers)
        return
    for name in sums[0]:
        yield from _split_together([grads[name] for grads in sums])


def _split_together(tensors: list[Tensor]) -> Iterator[tuple[Tensor, ...]]:
    """Yields pieces of vectors of equal size in step, as views of at most a stretch each where memory is contiguous."""
    if tensors[0].numel() <= _STRETCH or not all(t.is_contiguous() for t in tensors):
        yield tuple(tensors)
    else:
        yield from zip(*[t.view(-1).split(_STRETCH) for t in tensors], strict=True)


def _exclusive_buffer(grads: Grads) -> Tensor | None:
    """Returns the one buffer behind the tensors of a vector, or None if something else is in it too."""
    base = common_buffer(grads)
    if base is None or base.numel() - sum([t.numel() for t in grads.values()]) >= ALIGNMENT * len(grads):
        return None
    return base if base.is_contiguous() and not base.storage_offset() else None


def _buffer_layout(grads: Grads) -> tuple[tuple[str, Any, int], ...]:
    return tuple([(name, t.storage_offset(), t.numel()) for name, t in grads.items()])


def zeros_like(grads: Grads) -> Grads:
    """Returns a vector of zeros with the shapes of another, in one buffer if the other's tensors are in one."""
    base = _exclusive_buffer(grads)
    if base is None:
        return {name: torch.zeros_like(tensor) for name, tensor in grads.items()}
    buffer = torch.zeros_like(base)
    return {name: torch.as_strided(buffer, t.shape, t.stride(), t.storage_offset()) for name, t in grads.items()}


ALIGNMENT = 16
"""Elements: in a buffer behind many tensors every one starts on a cache line."""


@cache
def accumulation_dtype(dtype: torch.dtype) -> torch.dtype:
    """Returns the type that sums and norms are kept in: float32 at least, because half precision breaks the bound."""
    return torch.promote_types(dtype, torch.float32)


def divide_(grads: dict[str, Tensor], divisor: float) -> None:
    """Divides all tensors of a vector in place, by one product over the buffer behind them if there is one of their
    own.
    """
    if divisor == 1.0 or not grads:
        return
    grads = {name: local_rows(tensor) for name, tensor in grads.items()}
    base = _exclusive_buffer(grads)
    if base is None:
        torch._foreach_mul_(list(grads.values()), 1 / divisor)
    else:
        base.mul_(1 / divisor)


def common_buffer(grads: dict[str, Tensor]) -> Tensor | None:
    """Returns the one buffer behind the tensors of a vector, 1-D with a few zeros between them, or None if they share
    none.

    >>> both = torch.zeros(32)
    >>> common_buffer({"a": both[:6].view(2, 3), "b": both[16:20]}).shape
    torch.Size([32])
    """
    tensors = list(grads.values())
    base = tensors[0]._base if tensors else None
    if base is None or any(t._base is not base for t in tensors):
        return None
    return base
