"""Holds what formulas share: the stopwatch's choices, and memory that is used again.

Fresh memory costs its page faults, on some machines more than the arithmetic in it. So rows that live until the
weighted sum lie in buffers that are handed out again once nobody holds them, and temporaries in one buffer for each
type.

One backend has one workspace. A formula that is given none has one of its own, which measures and remembers nothing
beyond itself.
"""

from __future__ import annotations

import math
import threading

import torch
from torch import Tensor

from sordino.kernels.kernel_tensors import is_free
from sordino.per_sample.formulas.formula_timing import Stopwatch

_MOST_ROWS = 64 << 20  # bytes remembered
_WORTH = 1 << 18  # elements; below, the allocator itself hands memory out again


class Workspace:
    """Holds the stopwatch and the memory of one backend."""

    __slots__ = ("_rows", "_temporaries", "stopwatch")

    def __init__(self, stopwatch: Stopwatch | None = None) -> None:
        self.stopwatch = Stopwatch() if stopwatch is None else stopwatch
        self._rows: list[Tensor] = []
        self._temporaries = threading.local()  # autograd may run a backward pass in a thread of its own

    def allocate_rows(self, shape: tuple[int, ...], like: Tensor, dtype: torch.dtype | None = None) -> Tensor:
        """Returns an uninitialised tensor of the workspace for rows that live until the sum, in a buffer nobody holds
        if there is one.

        It is on the device of `like`, and of its type unless another is given. What is remembered is bounded, because
        it is there during the forward pass too.
        """
        n, dtype = math.prod(shape), like.dtype if dtype is None else dtype
        # Small tensors are cheap to allocate.
        if n < _WORTH:
            return like.new_empty(shape, dtype=dtype)
        # A buffer that fits and that nobody holds is used again; one that is more than twice too large is left for
        # others.
        for buffer in self._rows:
            fits = n <= buffer.numel() <= 2 * n and buffer.dtype == dtype and buffer.device == like.device
            if fits and is_free(buffer):
                return buffer[:n].view(shape)
        buffer = torch.empty(n, dtype=dtype, device=like.device)
        if buffer.nbytes + sum(held.nbytes for held in self._rows) <= _MOST_ROWS:
            self._rows.append(buffer)
        return buffer[:n].view(shape)

    def release_rows(self) -> None:
        """Gives the buffers for rows back."""
        self._rows.clear()

    def allocate_temporary(self, shape: tuple[int, ...], like: Tensor) -> Tensor:
        """Returns an uninitialised tensor of the workspace for a temporary; the next temporary of its type overwrites
        it.
        """
        key, elements = f"{like.dtype}{like.device}", math.prod(shape)
        held: Tensor | None = self._temporaries.__dict__.get(key)
        if held is None or held.numel() < elements:
            held = self._temporaries.__dict__[key] = torch.empty(elements, dtype=like.dtype, device=like.device)
        return held[:elements].view(shape)
