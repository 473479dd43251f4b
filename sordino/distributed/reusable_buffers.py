"""Reusable buffers for sums over ranks, used again once nobody holds them.

Fresh memory would cost its page faults on every lot.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from sordino.kernels.kernel_tensors import is_free

_MOST = 1 << 25
"""Numbers of a buffer that is kept; longer ones are given back after every lot."""
_BUFFERS = 4


@dataclass
class ReusableBuffers:
    """Buffers of one run."""

    _buffers: list[Tensor] = field(default_factory=list)

    def borrow(self, length: int, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Returns a buffer of this length for a sum over ranks, with arbitrary content: one that nobody holds any more,
        or a new one.

        Its memory is nobody else's for as long as some tensor is in it.
        """
        # A view is handed out, so that the buffer counts as held for as long as the view lives.
        for buffer in self._buffers:
            if len(buffer) == length and buffer.dtype is dtype and buffer.device == device and is_free(buffer):
                return buffer[:]
        made = torch.empty(length, dtype=dtype, device=device)
        if length <= _MOST and not made.is_meta:
            self._buffers = [*self._buffers, made][-_BUFFERS:]
        return made[:]
