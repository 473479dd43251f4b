"""Binding of the compiled forward pass of a convolution and the gradient at its input.

    y[t, p] = b[p] + Σ_kc a[t + k, c] w[p, c, k]    and at the input the same product of the output gradient, once for
                                                    every remainder of a pixel's place by the stride

It takes float32 on the CPU with channels last, without groups and dilation.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input

from sordino.kernels import build
from sordino.kernels.abi import (
    BEST,
    INT,
    POINTER,
    STEP,
    KernelGeometry,
    KernelWindow,
    address_of,
    are_close,
    load_verified,
    make_shape,
    run_in_parts,
)
from sordino.kernels.kernel_tensors import are_cpu_floats

FUNCTIONS = {
    "sordino_correlation": (INT, INT, POINTER, STEP, STEP, *[POINTER] * 4),
    "sordino_correlation_input": (INT, INT, POINTER, STEP, STEP, *[POINTER] * 3),
}
_PACKED = "the packed weights of a convolution"


@dataclass(frozen=True)
class Correlations:
    """Calls the library's functions at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int = BEST

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: KernelGeometry) -> Tensor:
        """Returns the output of a convolution, channels last, by the compiled correlation."""
        y = torch.empty(_output_shape(x, weight, geometry), dtype=x.dtype, memory_format=torch.channels_last)
        bias = None if bias is None else bias.contiguous()
        where = (x.data_ptr(), weight.data_ptr(), address_of(bias), y.data_ptr())
        self._run("sordino_correlation", make_shape(x, y, geometry, weight.stride()), len(x), where)
        return y

    def backward(self, size: torch.Size, g: Tensor, weight: Tensor, geometry: KernelGeometry) -> Tensor:
        """Returns the gradient at a convolution's input of the given size, channels last, by the compiled correlation."""
        a = torch.empty(size, dtype=g.dtype, memory_format=torch.channels_last)
        where = (g.data_ptr(), weight.data_ptr(), a.data_ptr())
        self._run("sordino_correlation_input", make_shape(a, g, geometry, weight.stride()), len(a), where)
        return a

    def _run(self, name: str, shape: object, samples: int, where: tuple[int | None, ...]) -> None:
        """Runs one of the functions over all samples, divided among threads."""
        leading_arguments, threads = (self.level, shape), torch.get_num_threads()
        run_in_parts(getattr(self.library, name), leading_arguments, where, samples, threads, short=_PACKED)


def can_run(x: Tensor, weight: Tensor, geometry: KernelGeometry) -> bool:
    """Returns whether the compiled correlation can run a convolution of this input, weight and geometry."""
    # Grouped and dilated convolutions are left to torch.
    return (
        are_cpu_floats(x, weight)
        and geometry.groups == 1
        and geometry.dilation == (1, 1)
        and min(x.shape) > 0
        and min(_output_shape(x, weight, geometry)) > 0
    )


def _output_shape(x: Tensor, weight: Tensor, geometry: KernelGeometry) -> tuple[int, ...]:
    """Returns the shape of the output."""
    sizes = zip(x.shape[2:], geometry.kernel, geometry.stride, geometry.padding, strict=True)
    return (len(x), len(weight), *((n + 2 * p - k) // s + 1 for n, k, s, p in sizes))


@cache
def load_correlations() -> Correlations | None:
    """Returns the kernel that is used, or None: there is none, or it does not give what it should."""
    return load_verified(build.CORRELATION, FUNCTIONS, Correlations, agrees_with_torch)


def agrees_with_torch(made: Correlations) -> bool:
    """Returns whether the compiled correlation gives torch's output and input gradient on a small convolution."""
    # Waves of different lengths in odd sizes, with stride and padding.
    x = (torch.arange(2 * 9 * 7 * 6, dtype=torch.float32) * 0.7).sin().view(2, 9, 7, 6)
    weight = (torch.arange(17 * 9 * 3 * 2, dtype=torch.float32) * 1.3).cos().view(17, 9, 3, 2)
    bias = torch.arange(17, dtype=torch.float32)
    geometry = KernelWindow((3, 2), stride=(2, 1), padding=(1, 0))
    y = torch.conv2d(x, weight, bias, geometry.stride, geometry.padding)
    back = conv2d_input(x.shape, weight, y, geometry.stride, geometry.padding)
    return are_close((made.forward(x, weight, bias, geometry), y), (made.backward(x.shape, y, weight, geometry), back))
