"""Per-sample weight gradients of convolutions by the compiled kernel, if there is one: as cheap as the framework's sum.

    rows:  G_i[p, k, c] = Σ_t g_i[t, p] a_i[t + k, c] for every sample, and Σ G_i²
    sum:   Σ_i w_i G_i

For float32 on the CPU, in one or two dimensions, with any stride, padding with zeros, dilation and groups, and in either
memory format. The kernel adds nothing but speed: rules/convolution.py has the same in torch.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from sordino.gradients.formulas.geometry import Geometry
from sordino.kernels import abi as frame
from sordino.kernels import build
from sordino.kernels.abi import BEST, NEAR, check, shape_of
from sordino.kernels.library import trusted
from sordino.kernels.threads import in_parts

_UNEVEN = Geometry((3, 2), (2, 1), (1, 0), (1, 1), 1)


@dataclass(frozen=True)
class Convolutions:
    """The library's functions at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int = BEST

    def rows(self, a: Tensor, g: Tensor, geometry: Geometry, into: Tensor | None) -> Tensor:
        """The squared norms, (B,); the gradients themselves go into a dense (B, p, K, C/groups), if there is one."""
        squared, shape = a.new_empty(len(a)), shape_of(a, g, geometry)
        rows, run = None if into is None else into.data_ptr(), self.library.sordino_rows

        def part(begin: int, end: int) -> None:
            check(run(self.level, shape, begin, end, a.data_ptr(), g.data_ptr(), rows, squared.data_ptr()))

        in_parts(part, len(a), torch.get_num_threads())
        return squared

    def sum(self, a: Tensor, g: Tensor, geometry: Geometry, weights: Tensor) -> Tensor:
        """Σ w_i G_i, as (p, K, C/groups); a sample of weight 0 is not looked at."""
        shape, threads, weights = shape_of(a, g, geometry), min(torch.get_num_threads(), len(a)), weights.contiguous()
        size = (g.shape[1], geometry.taps, a.shape[1] // geometry.groups)
        sums, run = a.new_zeros((max(1, threads), *size)), self.library.sordino_sum

        def part(first: int, last: int) -> None:
            for k in range(first, last):
                begin, end = len(a) * k // threads, len(a) * (k + 1) // threads
                where = (a.data_ptr(), g.data_ptr(), weights.data_ptr(), sums[k].data_ptr())
                check(run(self.level, shape, begin, end, *where))

        in_parts(part, threads, max(1, threads))
        return sums[0] if threads <= 1 else sums.sum(0)


def takes(a: Tensor, g: Tensor, geometry: Geometry) -> bool:
    """Whether the kernel can do this layer."""
    return (
        a.dtype == g.dtype == torch.float32
        and a.is_cpu
        and g.is_cpu
        and len(geometry.kernel) <= 2
        and min(a.shape[1:]) > 0
        and min(g.shape[1:]) > 0
    )


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    return frame.typed(library, sordino_rows=4, sordino_sum=4)


@cache
def convolutions() -> Convolutions | None:
    """The kernel that is used, or None: there is none, or it does not give what it should."""
    return trusted(build.CONVOLUTION, lambda library: Convolutions(typed(library)), agrees)


def agrees(made: Convolutions, geometry: Geometry = _UNEVEN) -> bool:
    """Whether rows, norms and sum of a small layer are torch's."""
    a = waves(0.7, 2, 9, 7, 6)
    weight, options = torch.zeros(5, 9, *geometry.kernel), (geometry.stride, geometry.padding)
    g, weights = waves(1.3, *torch.conv2d(a, weight, None, *options).shape), torch.tensor([0.5, 2.0])
    wanted = torch.stack(
        [conv2d_weight(a[i : i + 1], weight.shape, g[i : i + 1], *options).flatten(2).mT for i in range(2)]
    )
    rows = torch.empty_like(wanted)
    squared = made.rows(a, g, geometry, rows)
    total = made.sum(a, g, geometry, weights)
    return (
        torch.allclose(rows, wanted, NEAR, NEAR)
        and torch.allclose(squared, wanted.flatten(1).square().sum(1), NEAR)
        and torch.allclose(total, torch.tensordot(weights, wanted, 1), NEAR, NEAR)
    )


def waves(step: float, *shape: int) -> Tensor:
    """Some numbers, channels last."""
    made = (torch.arange(prod(shape), dtype=torch.float32) * step).sin().view(shape)
    return made.contiguous(memory_format=torch.channels_last)
