"""Binding of the compiled per-sample weight gradients of convolutions.

It takes float32 on the CPU, in one or two dimensions, with any stride, padding with zeros, dilation and groups, and in
either memory format. It costs about what the framework's sum does. The kernel adds nothing but speed:
per_sample/formulas/convolution_rows.py has the same in torch.
"""

from __future__ import annotations

from functools import cache

from sordino.kernels import build
from sordino.kernels.abi import KernelWindow, load_verified
from sordino.kernels.sample_gradients import FUNCTIONS, SampleGradients, agrees_with_torch_on, is_readable

can_run = is_readable
"""Whether the kernel can do this layer."""
_UNEVEN = KernelWindow((3, 2), stride=(2, 1), padding=(1, 0))


@cache
def load_gradients() -> SampleGradients | None:
    """Returns the kernel that is used, or None: there is none, or it does not give what it should."""
    return load_verified(build.CONVOLUTION, FUNCTIONS, SampleGradients, agrees_with_torch)


def agrees_with_torch(made: SampleGradients) -> bool:
    """Returns whether the kernel gives torch's values, where rows and columns differ in everything."""
    return agrees_with_torch_on(made, _UNEVEN)
