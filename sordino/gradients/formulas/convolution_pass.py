"""The forward pass of a convolution and the gradient at its input, by the compiled kernel where that is faster than torch.

    y[t, p] = b[p] + Σ_kc a[t + k, c] w[p, c, k]    and at the input the same product of the output gradient, once for
                                                    every remainder of a pixel's place by the stride

It is for few input channels and for strides, where the framework's kernels leave half of the processor idle. Of the others
torch's own multiply as fast as the processor can, and `winograd` does 3×3 ones with fewer multiplications. For float32
on the CPU with channels last, without groups and dilation. Which is fastest is found by timing, forward and backward each
for itself.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn.grad import conv2d_input

from sordino.gradients.first_batch import stopwatch as tune
from sordino.gradients.formulas import by_shape as likely
from sordino.gradients.formulas.geometry import Geometry
from sordino.kernels import abi as frame
from sordino.kernels import build, winograd
from sordino.kernels.abi import BEST, NEAR, check, shape_of
from sordino.kernels.library import trusted
from sordino.kernels.threads import in_parts

Ways: TypeAlias = dict[str, Callable[[], Tensor]]
"""Codes of equal result, by name."""


@dataclass(frozen=True)
class Correlations:
    """The library's functions at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int = BEST

    def forward(self, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
        """The output, channels last."""
        y = torch.empty(_output(x, weight, geometry), dtype=x.dtype, memory_format=torch.channels_last)
        shape, start = shape_of(x, y, geometry, weight.stride()), None
        if bias is not None:
            bias = bias.contiguous()
            start = bias.data_ptr()

        def part(begin: int, end: int) -> None:
            where = (x.data_ptr(), weight.data_ptr(), start, y.data_ptr())
            check(self.library.sordino_correlation(self.level, shape, begin, end, *where))

        in_parts(part, len(x), torch.get_num_threads())
        return y

    def backward(self, size: torch.Size, g: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
        """The gradient at an input of this size, channels last."""
        a = torch.empty(size, dtype=g.dtype, memory_format=torch.channels_last)
        shape = shape_of(a, g, geometry, weight.stride())

        def part(begin: int, end: int) -> None:
            where = (g.data_ptr(), weight.data_ptr(), a.data_ptr())
            check(self.library.sordino_correlation_input(self.level, shape, begin, end, *where))

        in_parts(part, len(a), torch.get_num_threads())
        return a


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """As torch.conv2d for x and weight with channels last, by whichever code is faster for their shapes."""
    kernel = correlations() if _takes(x, weight, geometry) else None
    if kernel is None:
        return _plain(x, weight, bias, geometry)
    y: Tensor = _Convolve.apply(x, weight, bias, geometry, kernel)  # type: ignore[no-untyped-call]
    return y


class _Convolve(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, kernel: Correlations
    ) -> Tensor:
        ctx.save_for_backward(weight)
        ctx.size, ctx.geometry, ctx.kernel = x.shape, geometry, kernel
        ways: Ways = {
            "torch": lambda: _plain(x, weight, bias, geometry),
            "compiled": lambda: kernel.forward(x, weight, bias, geometry),
        }
        fewer = winograd.passes() if winograd.fits(geometry) else None
        if fewer is not None:
            ways["winograd"] = lambda: fewer.forward(x, weight, bias, geometry)
        return _by_the_faster("forward", x, weight, geometry, ways)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None]:
        if not ctx.needs_input_grad[0]:
            return None, None, None, None, None
        (weight,) = ctx.saved_tensors
        size, geometry, kernel = ctx.size, ctx.geometry, ctx.kernel
        ways: Ways = {
            "torch": lambda: _plain_input(size, g, weight, geometry),
            "compiled": lambda: kernel.backward(size, g, weight, geometry),
        }
        fewer = winograd.passes() if winograd.fits(geometry) else None
        if fewer is not None:
            ways["winograd"] = lambda: fewer.backward(size, g, weight, geometry)
        return _by_the_faster("input", g, weight, geometry, ways), None, None, None, None


def _by_the_faster(which: str, x: Tensor, weight: Tensor, geometry: Geometry, ways: Ways) -> Tensor:
    key = (which, geometry, x.shape[1:], x.stride()[1:], weight.shape, torch.get_num_threads())
    choice = tune.known(key)
    if choice is None:
        first = likely.whole_pass(which, geometry, weight.shape, x.shape, ways)
        choice = tune.fastest(key, x.device, {first: ways[first], **ways})
    return ways.get(choice, ways["torch"])()  # a checkpoint may name what is not here


def _plain(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    return torch.conv2d(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)


def _plain_input(size: torch.Size, g: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    like = g.new_empty(1).expand(size)  # only its shape is read
    options = (geometry.stride, geometry.padding, geometry.dilation, False, (0, 0), geometry.groups)
    found: Tensor = torch.ops.aten.convolution_backward(g, like, weight, None, *options, (True, False, False))[0]
    return found


def _takes(x: Tensor, weight: Tensor, geometry: Geometry) -> bool:
    return (
        x.dtype == weight.dtype == torch.float32
        and x.is_cpu
        and weight.is_cpu
        and geometry.groups == 1
        and geometry.dilation == (1, 1)
        and min(x.shape) > 0
        and min(_output(x, weight, geometry)) > 0
        and not torch.is_autocast_enabled("cpu")
        and not x.is_inference()
    )


def _output(x: Tensor, weight: Tensor, geometry: Geometry) -> tuple[int, ...]:
    sizes = zip(x.shape[2:], geometry.kernel, geometry.stride, geometry.padding, strict=True)
    return (len(x), len(weight), *((n + 2 * p - k) // s + 1 for n, k, s, p in sizes))


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    return frame.typed(library, sordino_correlation=4, sordino_correlation_input=3)


@cache
def correlations() -> Correlations | None:
    """The kernel that is used, or None: there is none, or it does not give what it should."""
    return trusted(build.CORRELATION, lambda library: Correlations(typed(library)), agrees)


def agrees(made: Correlations) -> bool:
    """Whether output and input gradient of a small layer are torch's."""
    x = (torch.arange(2 * 9 * 7 * 6, dtype=torch.float32) * 0.7).sin().view(2, 9, 7, 6)
    weight = (torch.arange(17 * 9 * 3 * 2, dtype=torch.float32) * 1.3).cos().view(17, 9, 3, 2)
    bias = torch.arange(17, dtype=torch.float32)
    geometry = Geometry((3, 2), (2, 1), (1, 0), (1, 1), 1)
    y = _plain(x, weight, bias, geometry)
    back = conv2d_input(x.shape, weight, y, geometry.stride, geometry.padding)
    return torch.allclose(made.forward(x, weight, bias, geometry), y, NEAR, 1e-4) and torch.allclose(
        made.backward(x.shape, y, weight, geometry), back, NEAR, 1e-3
    )
