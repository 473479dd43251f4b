"""Binding of the compiled max pooling: the maxima of windows, and the gradient at the input.

It takes float32 on the CPU with channels last. Both are torch's to the last bit, forward at a third of its price, and
two bytes for each output say which tap it is from, where torch keeps eight.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.abi import BEST, INT, POINTER, STEP, KernelWindow, load_verified, run_in_parts
from sordino.kernels.kernel_tensors import are_cpu_floats

FUNCTIONS = dict.fromkeys(("sordino_pool", "sordino_pool_input"), (INT, INT, POINTER, STEP, STEP, *[POINTER] * 3))
_TAPS = 1 << 15  # that two bytes can name
_SPLIT = 1 << 14  # outputs; fewer are not worth a second thread
_LAST = torch.channels_last


@dataclass(frozen=True)
class Pools:
    """Calls the library's functions at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int = BEST

    def forward(self, x: Tensor, window: KernelWindow) -> tuple[Tensor, Tensor]:
        """Returns the maxima of the windows by the compiled pool kernel, channels last, and the tap of its window that
        each is from.
        """
        size = (*x.shape[:2], *_output_size(x.shape, window))
        y, taps = (torch.empty(size, dtype=dtype, memory_format=_LAST) for dtype in (x.dtype, torch.int16))
        self._run_all_samples("sordino_pool", x.shape, y, window, (x.data_ptr(), y.data_ptr(), taps.data_ptr()))
        return y, taps

    def backward(self, size: torch.Size, g: Tensor, taps: Tensor, window: KernelWindow) -> Tensor:
        """Returns the gradient at the input of a max pooling by the compiled pool kernel, an input of the given size,
        channels last.
        """
        g = g.contiguous(memory_format=_LAST)
        x = torch.empty(size, dtype=g.dtype, memory_format=_LAST)
        self._run_all_samples("sordino_pool_input", size, g, window, (g.data_ptr(), taps.data_ptr(), x.data_ptr()))
        return x

    def _run_all_samples(
        self, name: str, size: torch.Size, y: Tensor, window: KernelWindow, where: tuple[int, ...]
    ) -> None:
        """Runs the forward or backward function of the compiled pool kernel over all samples, divided among threads."""
        # The struct in pool.c: channels and size of input and output, then kernel, stride and padding.
        options = (*window.kernel, *window.stride, *window.padding)
        shape = (ctypes.c_int64 * 11)(*size[1:], *y.shape[2:], *options)
        threads = torch.get_num_threads() if y.numel() >= _SPLIT else 1
        run_in_parts(getattr(self.library, name), (self.level, shape), where, len(y), min(threads, len(y)))


def _output_size(size: torch.Size, window: KernelWindow) -> tuple[int, ...]:
    """Returns the spatial size of the output."""
    sizes = zip(size[2:], window.kernel, window.stride, window.padding, strict=True)
    return tuple((n + 2 * p - k) // s + 1 for n, k, s, p in sizes)


def can_run(x: Tensor, window: KernelWindow) -> bool:
    """Returns whether the compiled pool kernel can run a max pooling: every window has a pixel, and nothing is empty."""
    # Windows that lie in the padding alone have no maximum, so they are left to torch.
    return (
        x.dim() == 4
        and are_cpu_floats(x)
        and min(x.shape) > 0
        and x.is_contiguous(memory_format=_LAST)
        and prod(window.kernel) <= _TAPS
        and all([0 <= 2 * p <= k and s > 0 for k, s, p in zip(*window[:3], strict=True)])  # noqa: C419
        and min(_output_size(x.shape, window)) > 0
    )


@cache
def load_pools() -> Pools | None:
    """Returns the kernel that is used, or None: there is none, or it does not give what it should."""
    return load_verified(build.POOL, FUNCTIONS, Pools, agrees_with_torch, least=1)


def agrees_with_torch(made: Pools) -> bool:
    """Returns whether maxima and gradients of the compiled pool kernel are torch's to the last bit, among equal values
    too.
    """
    # Many equal values, so that the rule for ties is compared as well.
    x = torch.arange(2 * 19 * 7 * 6).remainder(11).float().view(2, 19, 7, 6).contiguous(memory_format=_LAST)
    window = KernelWindow((3, 2), stride=(2, 1), padding=(1, 0))
    y, found = torch.ops.aten.max_pool2d_with_indices(x, *window[:3])
    g = (torch.arange(y.numel()) * 0.7).sin().view(y.shape).contiguous(memory_format=_LAST)
    back = torch.ops.aten.max_pool2d_with_indices_backward(g, x, *window[:3], (1, 1), False, found)
    mine, taps = made.forward(x, window)
    return torch.equal(mine, y) and torch.equal(made.backward(x.shape, g, taps, window), back)
