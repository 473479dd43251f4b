"""The compiled products of a linear map's per-sample gradients, if they are there.

    sum:   out = β out + Σ_k w_k g_k a_kᵀ    the weights go in while the rows are packed, so no scaled copy is made
    rows:  g_iᵀ a_i of every sample          with its sum of squares, taken while a tile is in the registers

Products are float32; squares are added up in float32 over a tile (96 values), in float64 over a matrix (product.c).
torch gives the same up to rounding, and is compared with on a small case before the library is used.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.library import Unavailable, opened
from sordino.kernels.threads import in_parts

LEVELS = ("portable", "AVX2")
_ROWS = 6  # of a tile: threads begin at multiples
_LEAST = 64  # columns of either factor, and rows; narrower products are torch's
_SMALL = 1 << 21  # multiplications; below, a call costs more than it saves, and a second thread too
_SHORT, _NARROW, _LITTLE = (
    32,
    32,
    1 << 17,
)  # positions, columns and multiplications of a sample from which on rows are made here
_ROUNDING = 1e-5  # relative, of a small case


class _Product(ctypes.Structure):
    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("g", "a", "w")],
        *[(name, ctypes.c_int64) for name in ("g_row", "a_row")],
        *[(name, ctypes.c_uint64) for name in ("rows", "p", "d")],
        ("out", ctypes.c_void_p),
        ("out_row", ctypes.c_int64),
    )


class _Apart(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("g", "a", "out"))


@dataclass(frozen=True)
class Products:
    """The library's function at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int

    def takes(self, g: Tensor, a: Tensor, out: Tensor) -> bool:
        """Whether it can do this product, and is likely to be faster."""
        rows, p, d = len(g), g.shape[1], a.shape[1]
        return (
            min(rows, p, d) >= _LEAST
            and rows * p * d >= _SMALL
            and all(x.dtype == torch.float32 and x.is_cpu and x.stride(1) == 1 for x in (g, a, out))
        )

    def add(self, g: Tensor, a: Tensor, w: Tensor, out: Tensor, beta: int, threads: int = 1) -> None:
        """Out (p, d) = β out + Σ_k w_k g_k a_kᵀ for g (K, p), a (K, d) and w (K,), rows dense; β is 0 or 1."""
        w = w.contiguous()
        given = _Product(g.data_ptr(), a.data_ptr(), w.data_ptr(), g.stride(0), a.stride(0))
        given.rows, given.p, given.d = len(g), g.shape[1], a.shape[1]
        given.out, given.out_row = out.data_ptr(), out.stride(0)
        short: list[int] = []

        def part(begin: int, end: int) -> None:
            if self.library.sordino_product(self.level, ctypes.addressof(given), begin, end, beta):
                short.append(begin)

        in_parts(part, g.shape[1], threads, _ROWS)
        if short:
            raise MemoryError("no memory for a few packed rows of a product")

    def takes_rows(self, g: Tensor, a: Tensor) -> bool:
        """Whether it can make the rows of g (B, T, p) and a (B, T, d), and is likely to be faster."""
        t, p, d = *g.shape[1:], a.shape[2]
        return (
            min(p, d) >= _NARROW
            and t >= _SHORT
            and t * p * d >= _LITTLE
            and all(x.dtype == torch.float32 and x.is_cpu and x.stride(2) == 1 for x in (g, a))
        )

    def rows(self, g: Tensor, a: Tensor, out: Tensor, threads: int = 1) -> Tensor:
        """Out (B, p, d), dense, = g_iᵀ a_i for g (B, T, p) and a (B, T, d), rows dense; the squared norms, (B,)."""
        b, t, p = g.shape
        squared = torch.empty(b, dtype=torch.float64)
        given = _Product(g.data_ptr(), a.data_ptr(), None, g.stride(1), a.stride(1), t, p, a.shape[2])
        given.out, given.out_row = out.data_ptr(), out.stride(1)
        apart, short = _Apart(g.stride(0), a.stride(0), out.stride(0)), list[int]()

        def part(begin: int, end: int) -> None:
            where = (ctypes.addressof(given), ctypes.addressof(apart), begin, end, squared.data_ptr())
            if self.library.sordino_samples(self.level, *where):
                short.append(begin)

        in_parts(part, b, 1 if b * t * p * a.shape[2] < _SMALL else min(threads, b))
        if short:
            raise MemoryError("no memory for a few packed rows of a product")
        return squared.to(out.dtype)


@cache
def products() -> Products | None:
    """What is used, or None: without vector instructions torch's products are faster."""
    try:
        library = typed(opened(build.PRODUCT))
    except Unavailable:
        return None
    made = Products(library, int(library.sordino_level(len(LEVELS) - 1)))
    return made if made.level and agrees(made) else None


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    size, number = ctypes.c_uint64, ctypes.c_int
    library.sordino_product.argtypes = [number, ctypes.c_void_p, size, size, number]
    library.sordino_samples.argtypes = [number, ctypes.c_void_p, ctypes.c_void_p, size, size, ctypes.c_void_p]
    library.sordino_product.restype = library.sordino_samples.restype = number
    library.sordino_level.restype = number
    return library


def agrees(made: Products) -> bool:
    """Whether it gives torch's values."""
    rng = torch.Generator().manual_seed(0)
    g, a, w = (torch.randn(shape, generator=rng) for shape in ((300, 13), (300, 21), (300,)))
    out = torch.ones(13, 21)
    wanted = 1 + (g * w[:, None]).t() @ a
    made.add(g, a, w, out, 1)
    g, a, each = g.view(3, 100, 13), a.view(3, 100, 21), torch.empty(3, 13, 21)
    squared, rows = made.rows(g, a, each), torch.bmm(g.mT, a)
    return all(
        bool((found - right).norm() <= _ROUNDING * right.norm())
        for found, right in ((out, wanted), (each, rows), (squared, rows.square().sum((1, 2))))
    )
