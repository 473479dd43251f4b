"""Runs a convolution forward and back to its input, compiled where that is faster than torch.

    y[t, p] = b[p] + Σ_kc a[t + k, c] w[p, c, k]    and at the input the same product of the output gradient, once for
                                                    every remainder of a pixel's place by the stride

The compiled kernel is for few input channels and for strides, where the framework's kernels leave half of the processor
idle. Of the others torch's own multiply as fast as the processor can, and `winograd` does 3×3 ones with fewer
multiplications. It takes float32 on the CPU with channels last, without groups and dilation. Which is fastest is found
by timing, forward and backward each for itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor

from sordino.kernels import winograd
from sordino.kernels.correlation import Correlations, can_run, load_correlations
from sordino.kernels.processor import torch_computes_sixteen_at_once
from sordino.per_sample.formulas import choice_by_shape
from sordino.per_sample.formulas.convolution_geometry import Geometry
from sordino.per_sample.formulas.workspace import Workspace

Ways: TypeAlias = dict[str, Callable[[], Tensor]]
"""Codes of equal result, by name."""


def convolve(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry, workspace: Workspace) -> Tensor:
    """Runs the forward pass of a convolution, torch.conv2d of x and weight with channels last, by whichever code is
    faster for their shapes.
    """
    # The kernel takes float32 on the CPU; autocast and inference tensors are left to torch.
    kernel = load_correlations() if can_run(x, weight, geometry) else None
    if kernel is None or torch.is_autocast_enabled("cpu") or x.is_inference():
        return _convolve_by_torch(x, weight, bias, geometry)
    y: Tensor = _Convolve.apply(x, weight, bias, geometry, kernel, workspace)  # type: ignore[no-untyped-call]
    return y


class _Convolve(torch.autograd.Function):
    """Runs a convolution whose forward and backward pass each choose their own code."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        geometry: Geometry,
        kernel: Correlations,
        workspace: Workspace,
    ) -> Tensor:
        """Computes the output of a convolution's forward pass by the fastest code."""
        # The input is kept by the tape; only the weight is needed for the gradient at the input.
        ctx.save_for_backward(weight)
        ctx.size, ctx.geometry, ctx.kernel, ctx.workspace = x.shape, geometry, kernel, workspace
        given = x, weight, bias, geometry
        # All candidates compute the same convolution; which is fastest depends on shapes and machine.
        ways: Ways = {"torch": partial(_convolve_by_torch, *given), "compiled": partial(kernel.forward, *given)}
        fewer = _find_winograd(geometry)
        if fewer is not None:
            ways["winograd"] = partial(fewer.forward, *given, workspace.allocate_temporary)
        return _run_fastest("forward", x, weight, geometry, ways, workspace)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, None, None, None, None, None]:
        """Computes the pass of a convolution back to its input by the fastest code; the weight's gradient is none of
        autograd's business.
        """
        found, (weight,) = None, ctx.saved_tensors
        # The first layer of a model needs no gradient at its input.
        if ctx.needs_input_grad[0]:
            given = ctx.size, g, weight, ctx.geometry
            ways: Ways = {
                "torch": partial(_input_gradient_by_torch, *given),
                "compiled": partial(ctx.kernel.backward, *given),
            }
            fewer = _find_winograd(ctx.geometry)
            if fewer is not None:
                ways["winograd"] = partial(fewer.backward, *given, ctx.workspace.allocate_temporary)
            found = _run_fastest("input", g, weight, ctx.geometry, ways, ctx.workspace)
        return found, None, None, None, None, None


def _find_winograd(geometry: Geometry) -> winograd.Passes | None:
    """Returns the Winograd passes, if they were compiled and fit this convolution."""
    return winograd.load_passes() if winograd.is_winograd_convolution(geometry) else None


def _run_fastest(which: str, x: Tensor, weight: Tensor, geometry: Geometry, ways: Ways, workspace: Workspace) -> Tensor:
    """Runs a convolution's pass by one of several codes of equal result: the one chosen before for this shape, or the
    one that is faster now.
    """
    key = (which, geometry, x.shape[1:], x.stride()[1:], weight.shape, torch.get_num_threads())
    choice = workspace.stopwatch.known_choice(key)
    if choice is None:
        wide = torch_computes_sixteen_at_once(torch.backends.cpu.get_cpu_capability())
        first = choice_by_shape.choose_pass_code(which, geometry, weight.shape, x.shape, ways, wide=wide)
        choice = workspace.stopwatch.choose_fastest(key, x.device, {first: ways[first], **ways})
    return ways.get(choice, ways["torch"])()  # a checkpoint may name what is not here


def _convolve_by_torch(x: Tensor, weight: Tensor, bias: Tensor | None, geometry: Geometry) -> Tensor:
    """Returns torch's own convolution."""
    return torch.conv2d(x, weight, bias, geometry.stride, geometry.padding, geometry.dilation, geometry.groups)


def _input_gradient_by_torch(size: torch.Size, g: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    """Returns torch's own gradient at the input of a convolution, one of the codes for the pass back."""
    like = g.new_empty(1).expand(size)  # only its shape is read
    options = (geometry.stride, geometry.padding, geometry.dilation, False, (0, 0), geometry.groups)
    gradient: Tensor = torch.ops.aten.convolution_backward(g, like, weight, None, *options, (True, False, False))[0]
    return gradient
