"""Binding shared by all kernels of per-sample weight gradients of convolutions.

rows:  G_i[p, k, c] = Σ_t g_i[t, p] a_i[t + k, c] for every sample, and Σ G_i²
sum:   Σ_i w_i G_i
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from sordino.kernels.abi import (
    BEST,
    INT,
    POINTER,
    STEP,
    KernelGeometry,
    address_of,
    are_close,
    make_shape,
    run_in_parts,
)
from sordino.kernels.kernel_tensors import are_cpu_floats, make_waves

FUNCTIONS = {
    "sordino_rows": (INT, INT, POINTER, STEP, STEP, *[POINTER] * 4),
    "sordino_sums": (INT, INT, POINTER, STEP, STEP, *[POINTER] * 4, STEP, STEP, STEP),
}
CHANNELS = 9
"""Channels of the small layer that a kernel is compared on."""
_PADDED = "one sample of a convolution"


@dataclass(frozen=True)
class SampleGradients:
    """Calls the library's functions at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int = BEST

    def measure_rows(self, a: Tensor, g: Tensor, geometry: KernelGeometry, into: Tensor | None) -> Tensor:
        """Returns the squared norms, (B,), of the sample gradients that a kernel computes of a convolution's weight,
        and writes these to a dense (B, p, K, C/groups), if there is one.
        """
        # Samples are divided among threads.
        squared, shape = a.new_empty(len(a)), make_shape(a, g, geometry)
        where = (a.data_ptr(), g.data_ptr(), address_of(into), squared.data_ptr())

        run_in_parts(
            self.library.sordino_rows, (self.level, shape), where, len(a), torch.get_num_threads(), short=_PADDED
        )
        return squared

    def weighted_sum(self, a: Tensor, g: Tensor, geometry: KernelGeometry, weights: Tensor) -> Tensor:
        """Returns Σ w_i G_i of the sample gradients G_i that a kernel computes of a convolution's weight, as (p, K,
        C/groups); a sample of weight 0 is not looked at.
        """
        shape, threads, weights = make_shape(a, g, geometry), min(torch.get_num_threads(), len(a)), weights.contiguous()
        size = (g.shape[1], prod(geometry.kernel), a.shape[1] // geometry.groups)
        # Each thread adds its samples to a sum of its own, and the few sums are added at the end.
        sums = a.new_zeros((max(1, threads), *size))

        where = (a.data_ptr(), g.data_ptr(), weights.data_ptr(), sums.data_ptr(), len(a), threads, prod(size))
        run_in_parts(self.library.sordino_sums, (self.level, shape), where, threads, max(1, threads), short=_PADDED)
        return sums[0] if threads <= 1 else sums.sum(0)


def is_readable(a: Tensor, g: Tensor, geometry: KernelGeometry) -> bool:
    """Returns whether such a kernel can read this layer: one or two dimensions, nothing empty."""
    return are_cpu_floats(a, g) and len(geometry.kernel) <= 2 and min(a.shape[1:]) > 0 and min(g.shape[1:]) > 0


def agrees_with_torch_on(made: SampleGradients, geometry: KernelGeometry) -> bool:
    """Returns whether the sample gradients that a kernel computes of a small convolution, with norms and sum, are
    torch's.
    """
    # A small convolution with every option of the geometry, computed by torch one sample at a time.
    a, groups = make_waves(0.7, 2, CHANNELS, 7, 6), geometry.groups
    weight = torch.zeros(5 if groups == 1 else groups, CHANNELS // groups, *geometry.kernel)
    options = (geometry.stride, geometry.padding, geometry.dilation, groups)
    g, weights = make_waves(1.3, *torch.conv2d(a, weight, None, *options).shape), torch.tensor([0.5, 2.0])
    wanted = torch.stack(
        [conv2d_weight(a[i : i + 1], weight.shape, g[i : i + 1], *options).flatten(2).mT for i in range(2)]
    )
    # The same by the kernel: the rows themselves, their norms, and a weighted sum.
    rows = torch.empty_like(wanted)
    squared, total = made.measure_rows(a, g, geometry, rows), made.weighted_sum(a, g, geometry, weights)
    return are_close(
        (rows, wanted),
        (squared, wanted.flatten(1).square().sum(1)),
        (total, torch.tensordot(weights, wanted, 1)),
    )
