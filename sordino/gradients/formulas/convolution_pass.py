"""The forward pass of a convolution and the gradient at its input, by the compiled kernel where that is faster than torch.

    y[t, p] = b[p] + Σ_kc a[t + k, c] w[p, c, k]    and at the input the same product of the output gradient, once for
                                                    every remainder of a pixel's place by the stride

It is for few input channels and for strides, where the framework's kernels leave half of the processor idle. Of the others
torch's own multiply as fast as the processor can, and `winograd` does 3×3 ones with fewer multiplications. For float32
on the CPU with channels last, without groups and dilation. Which is fastest is found by timing, forward and backward each
for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sordino.gradients.first_batch import stopwatch as tune
from sordino.gradients.formulas import by_shape as likely
from sordino.gradients.formulas.geometry import Geometry
from sordino.gradients.formulas.part import scratch
from sordino.kernels import winograd
from sordino.kernels.correlation import Correlations, correlations, takes

Ways: TypeAlias = dict[str, Callable[[], Tensor]]
"""Codes of equal result, by name."""


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """As torch.conv2d for x and weight with channels last, by whichever code is faster for their shapes."""
    kernel = correlations() if takes(x, weight, geometry) else None
    if kernel is None or torch.is_autocast_enabled("cpu") or x.is_inference():
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
            ways["winograd"] = lambda: fewer.forward(x, weight, bias, geometry, _reused)
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
            ways["winograd"] = lambda: fewer.backward(size, g, weight, geometry, _reused)
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


def _reused(shape: tuple[int, ...], like: Tensor) -> Tensor:
    return scratch(shape[0], like)
