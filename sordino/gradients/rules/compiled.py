"""Per-sample weight gradients of convolutions by the compiled kernel, if there is one: as cheap as the framework's sum.

    rows:  G_i[p, k, c] = Σ_t g_i[t, p] a_i[t + k, c] for every sample, and Σ G_i²
    sum:   Σ_i w_i G_i

For float32 on the CPU, in one or two dimensions, with any stride, padding with zeros, dilation and groups, and in either
memory format. The kernel adds nothing but speed: rules/convolution.py has the same in torch.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache

import torch
from torch import Tensor
from torch.nn.grad import conv2d_weight

from sordino.gradients.rules.patches import Geometry
from sordino.kernels import build
from sordino.kernels.library import trusted
from sordino.kernels.threads import in_parts

_BEST = 1
_NEAR = 1e-5


@dataclass(frozen=True)
class Convolutions:
    """The library's functions at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int = _BEST

    def rows(self, a: Tensor, g: Tensor, geometry: Geometry, into: Tensor | None) -> Tensor:
        """The squared norms, (B,); the gradients themselves go into a dense (B, p, K, C/groups), if there is one."""
        squared, shape = a.new_empty(len(a)), _shape(a, g, geometry)
        rows = None if into is None else into.data_ptr()

        def part(begin: int, end: int) -> None:
            _check(
                self.library.sordino_convolution_rows(
                    self.level, shape, begin, end, a.data_ptr(), g.data_ptr(), rows, squared.data_ptr()
                )
            )

        in_parts(part, len(a), torch.get_num_threads())
        return squared

    def sum(self, a: Tensor, g: Tensor, geometry: Geometry, weights: Tensor) -> Tensor:
        """Σ w_i G_i, as (p, K, C/groups); a sample of weight 0 is not looked at."""
        shape, threads, weights = _shape(a, g, geometry), min(torch.get_num_threads(), len(a)), weights.contiguous()
        size = (g.shape[1], geometry.taps, a.shape[1] // geometry.groups)
        sums = a.new_zeros((max(1, threads), *size))

        def part(first: int, last: int) -> None:
            for k in range(first, last):
                begin, end = len(a) * k // threads, len(a) * (k + 1) // threads
                where = (a.data_ptr(), g.data_ptr(), weights.data_ptr(), sums[k].data_ptr())
                _check(self.library.sordino_convolution_sum(self.level, shape, begin, end, *where))

        in_parts(part, threads, max(1, threads))
        return sums[0] if threads <= 1 else sums.sum(0)


def _check(problem: int) -> None:
    if problem:
        raise MemoryError("there is no memory for one sample of a convolution")


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


def _shape(a: Tensor, g: Tensor, geometry: Geometry) -> ctypes.Array[ctypes.c_int64]:
    pair = (geometry.kernel, geometry.stride, geometry.padding, geometry.dilation)
    return _laid_out(a.shape[1:], a.stride(), g.shape[1:], g.stride(), pair, geometry.groups)


@lru_cache(maxsize=4096)
def _laid_out(
    a: tuple[int, ...],
    a_step: tuple[int, ...],
    g: tuple[int, ...],
    g_step: tuple[int, ...],
    pairs: tuple[tuple[int, ...], ...],
    groups: int,
) -> ctypes.Array[ctypes.c_int64]:
    """The kernel's shape_t. One dimension is a row of an image one pixel high."""
    if len(a) == 2:
        a, g = (a[0], 1, a[1]), (g[0], 1, g[1])
        a_step, g_step = (*a_step[:2], 0, a_step[2]), (*g_step[:2], 0, g_step[2])
        neutral = (1, 1, 0, 1)
        pairs = tuple((one, *pair) for one, pair in zip(neutral, pairs, strict=True))
    numbers: Sequence[int] = [*a, *g, *(n for pair in pairs for n in pair), groups, *a_step, *g_step]
    return (ctypes.c_int64 * len(numbers))(*numbers)


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    for function in (library.sordino_convolution_rows, library.sordino_convolution_sum):
        function.argtypes = [ctypes.c_int, pointer, size, size, pointer, pointer, pointer, pointer]
        function.restype = ctypes.c_int
    return library


@cache
def convolutions() -> Convolutions | None:
    """The kernel that is used, or None: there is none, or it does not give what it should."""
    return trusted(build.CONVOLUTION, lambda library: Convolutions(typed(library)), agrees)


def agrees(made: Convolutions) -> bool:
    """Whether rows, norms and sum of a small layer are torch's."""
    count = torch.arange(2 * 9 * 7 * 6, dtype=torch.float32)
    a = (count * 0.7).sin().view(2, 9, 7, 6)
    g = (torch.arange(2 * 5 * 4 * 5, dtype=torch.float32) * 1.3).cos().view(2, 5, 4, 5)
    geometry, weights = Geometry((3, 2), (2, 1), (1, 0), (1, 1), 1), torch.tensor([0.5, 2.0])
    wanted = torch.stack(
        [conv2d_weight(a[i : i + 1], (5, 9, 3, 2), g[i : i + 1], (2, 1), (1, 0)).flatten(2).mT for i in range(2)]
    )
    rows = torch.empty_like(wanted)
    squared = made.rows(a, g, geometry, rows)
    total = made.sum(a, g, geometry, weights)
    return (
        torch.allclose(rows, wanted, _NEAR, _NEAR)
        and torch.allclose(squared, wanted.flatten(1).square().sum(1), _NEAR)
        and torch.allclose(total, torch.tensordot(weights, wanted, 1), _NEAR, _NEAR)
    )
