"""Pool of flat buffers behind the gradients of a whole model, reused once nobody holds them.

A fresh buffer of 11M floats costs its page faults on every step. The pool hands a buffer out again only when no tensor
outside the pool shares its memory, so a sum that is still held, or lies in `.grad`, is never overwritten.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from sordino.kernels.kernel_tensors import is_free
from sordino.release.vectors import ALIGNMENT

_KEPT = 3  # buffers a pool remembers


@dataclass
class Pool:
    """Hands out buffers for tensors of the given shapes; there is one pool for each model."""

    buffers: list[Tensor] = field(default_factory=list)
    _shapes: tuple[torch.Size, ...] = ()
    _places: list[tuple[torch.Size, tuple[int, ...], int]] = field(default_factory=list)  # shape, strides, start
    _length: int = 0

    def allocate_views(self, shapes: Sequence[torch.Size], dtype: torch.dtype, device: torch.device) -> list[Tensor]:
        """Returns gradient tensors of the given shapes, all views of one flat buffer (see `flat`), holding whatever was
        there before.
        """
        if tuple(shapes) != self._shapes:
            self._plan_places(tuple(shapes))
        buffer = self._take_free_buffer(self._length, dtype, device)
        return [torch.as_strided(buffer, shape, strides, start) for shape, strides, start in self._places]

    def _plan_places(self, shapes: tuple[torch.Size, ...]) -> None:
        """Computes where each gradient lies in the flat buffer, with aligned beginnings."""
        self._shapes, self._places, self._length = shapes, [], 0
        for shape in shapes:
            strides = tuple(math.prod(shape[k + 1 :]) for k in range(len(shape)))
            self._places.append((shape, strides, self._length))
            self._length += -(-shape.numel() // ALIGNMENT) * ALIGNMENT

    def _take_free_buffer(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns a gradient buffer that nobody else holds, or a new one; the pool remembers the last few."""
        for buffer in self.buffers:
            if buffer.numel() == length and buffer.dtype == dtype and buffer.device == device and is_free(buffer):
                return buffer
        # None is free: make another, and forget the oldest.
        buffer = torch.zeros(length, dtype=dtype, device=device)
        self.buffers.append(buffer)
        del self.buffers[:-_KEPT]
        return buffer
