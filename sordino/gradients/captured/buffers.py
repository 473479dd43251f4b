"""One flat buffer behind the gradients of a whole model, used again once nobody holds it.

A fresh buffer of 11M floats costs its page faults on every step. The pool hands a buffer out again only when no tensor
outside the pool shares its memory, so a sum that is still held, or lies in `.grad`, is never overwritten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sordino.door.vectors import ALIGNMENT

_KEPT = 3  # buffers a pool remembers
_POOL_ONLY = 2  # references to a storage: the pool's tensor, and the handle that asks


@dataclass
class Pool:
    """Buffers for tensors of the given shapes; one per model."""

    buffers: list[Tensor] = field(default_factory=list)
    _shapes: tuple[torch.Size, ...] = ()
    _places: list[tuple[torch.Size, tuple[int, ...], int]] = field(default_factory=list)  # shape, strides, start
    _length: int = 0

    def views(self, shapes: Sequence[torch.Size], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        """Tensors of these shapes, all views of one buffer (see `flat`), holding whatever was there before."""
        if tuple(shapes) != self._shapes:
            self._place(tuple(shapes))
        buffer = self._take(self._length, dtype, device)
        return [torch.as_strided(buffer, shape, strides, start) for shape, strides, start in self._places]

    def _place(self, shapes: tuple[torch.Size, ...]) -> None:
        self._shapes, self._places, self._length = shapes, [], 0
        for shape in shapes:
            strides = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
            self._places.append((shape, strides, self._length))
            self._length += -(-shape.numel() // ALIGNMENT) * ALIGNMENT

    def _take(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        for buffer in self.buffers:
            if buffer.numel() == length and buffer.dtype == dtype and buffer.device == device and _free(buffer):
                return buffer
        buffer = torch.zeros(length, dtype=dtype, device=device)
        self.buffers.append(buffer)
        del self.buffers[:-_KEPT]
        return buffer


_ROWS: list[Tensor] = []
_MOST_ROWS = 64 << 20  # bytes remembered
_WORTH = 1 << 18  # elements; below, the allocator itself hands memory out again


def room(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """An uninitialised tensor for rows that live until the sum, in a buffer nobody holds any more if there is one.

    Fresh memory costs its page faults. What is remembered is bounded, because it is there during the forward pass too.
    """
    n = math.prod(shape)
    if n < _WORTH:
        return like.new_empty(shape)
    for buffer in _ROWS:
        fits = n <= buffer.numel() <= 2 * n and buffer.dtype == like.dtype and buffer.device == like.device
        if fits and _free(buffer):
            return buffer[:n].view(shape)
    buffer = torch.empty(n, dtype=like.dtype, device=like.device)
    if buffer.nbytes + sum(held.nbytes for held in _ROWS) <= _MOST_ROWS:
        _ROWS.append(buffer)
    return buffer[:n].view(shape)


def forget_rows() -> None:
    """Give the buffers for rows back."""
    _ROWS.clear()


def _free(buffer: Tensor) -> bool:
    storage = buffer.untyped_storage()
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count <= _POOL_ONLY
