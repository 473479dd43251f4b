"""Binding of the weight gradients of 3×3 convolutions by Winograd's F(3×3, 2×2).

Lavin & Gray 2016, arXiv:1509.09308.

    dw = Gᵀ[(A g Aᵀ) ∘ (Bᵀ d B)]G      the weight's gradient: per sample, or once for a weighted sum of all

It is for the layers of `winograd` with channels last; matrices and rounding are the same.
"""

from __future__ import annotations

from functools import cache

from torch import Tensor

from sordino.kernels import build
from sordino.kernels.abi import KernelGeometry, KernelWindow, load_verified
from sordino.kernels.sample_gradients import FUNCTIONS, SampleGradients, agrees_with_torch_on, is_readable
from sordino.kernels.winograd import has_channels_last, is_winograd_convolution

_PLAIN = KernelWindow((3, 3), padding=(1, 1))


def can_run(a: Tensor, g: Tensor, geometry: KernelGeometry) -> bool:
    """Returns whether the rows of per-sample weight gradients of a 3×3 convolution can be computed by Winograd's F(3×3,
    2×2).
    """
    return (
        is_winograd_convolution(geometry)
        and is_readable(a, g, geometry)
        and has_channels_last(a)
        and has_channels_last(g)
    )


@cache
def load_gradients() -> SampleGradients | None:
    """Returns the kernel that is used, or None: there is none, or it does not give what it should."""
    return load_verified(build.WINOGRAD_ROWS, FUNCTIONS, SampleGradients, agrees_with_torch)


def agrees_with_torch(made: SampleGradients) -> bool:
    """Returns whether the kernel gives torch's values."""
    return agrees_with_torch_on(made, _PLAIN)
