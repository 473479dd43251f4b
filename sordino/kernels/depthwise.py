"""Binding of the compiled per-sample weight gradients of depthwise convolutions.

It takes float32 on the CPU, in one or two dimensions, with as many outputs and groups as channels. Its slow path is a
product and a sum for every tap (per_sample/formulas/convolution_rows.py).
"""

from __future__ import annotations

from functools import cache

from torch import Tensor

from sordino.kernels import build
from sordino.kernels.abi import KernelGeometry, KernelWindow, load_verified
from sordino.kernels.sample_gradients import CHANNELS, FUNCTIONS, SampleGradients, agrees_with_torch_on, is_readable

_UNEVEN = KernelWindow((3, 2), stride=(2, 1), padding=(1, 0), groups=CHANNELS)


def can_run(a: Tensor, g: Tensor, geometry: KernelGeometry) -> bool:
    """Returns whether the kernel can do this layer."""
    return geometry.groups == a.shape[1] == g.shape[1] and is_readable(a, g, geometry)


@cache
def load_gradients() -> SampleGradients | None:
    """Returns the kernel that is used, or None: there is none, or it does not give what it should."""
    return load_verified(build.DEPTHWISE, FUNCTIONS, SampleGradients, agrees_with_torch)


def agrees_with_torch(made: SampleGradients) -> bool:
    """Returns whether the kernel gives torch's values, where rows and columns differ in everything."""
    return agrees_with_torch_on(made, _UNEVEN)
