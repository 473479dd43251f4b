"""Binding of the compiled products of a linear map's per-sample gradients.

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
from sordino.kernels.abi import INT, POINTER, SIZE, are_close, load_verified, pack_numbers, run_in_parts
from sordino.kernels.kernel_tensors import are_cpu_floats

FUNCTIONS = {
    "sordino_product": (INT, INT, POINTER, SIZE, SIZE, INT),
    "sordino_samples": (INT, INT, POINTER, POINTER, SIZE, SIZE, POINTER),
}
_ROWS = 6  # of a tile: threads begin at multiples
_LEAST = 64  # columns of either factor, and rows; narrower products are torch's
_SMALL = 1 << 21  # multiplications; below, a call costs more than it saves, and a second thread too
_FEW_POSITIONS, _FEW_COLUMNS, _LITTLE_WORK = 32, 32, 1 << 17
"""Sizes of one sample, the last in multiplications, from which on its row is made here."""
_PACKED = "a few packed rows of a product"


@dataclass(frozen=True)
class Products:
    """Calls the library's functions at one level of the processor's abilities.

    Fields of product_t: g, a, w, the steps from row to row of g and a, rows, p, d, out and its step; of apart_t the
    steps from sample to sample of g, a and out.
    """

    library: ctypes.CDLL
    level: int

    def can_multiply(self, g: Tensor, a: Tensor, out: Tensor) -> bool:
        """Returns whether the product kernel takes g and a of a linear map, and is likely to be faster than torch."""
        (rows, p), d = g.shape, a.shape[1]
        if min(rows, p, d) < _LEAST or rows * p * d < _SMALL:
            return False
        return g.stride(1) == a.stride(1) == out.stride(1) == 1 and are_cpu_floats(g, a, out)

    def add_weighted_product(self, g: Tensor, a: Tensor, w: Tensor, out: Tensor, beta: int, threads: int = 1) -> None:
        """Sets out (p, d) = β out + Σ_k w_k g_k a_kᵀ by the product kernel, for g (K, p), a (K, d) and w (K,), rows
        dense; β is 0 or 1.
        """
        # Rows of the result are divided among threads, so no two of them write to the same place.
        w, (rows, p) = w.contiguous(), g.shape
        factors = (g.data_ptr(), a.data_ptr(), w.data_ptr(), g.stride(0), a.stride(0))
        given, held = pack_numbers((*factors, rows, p, a.shape[1], out.data_ptr(), out.stride(0)))

        run_in_parts(self.library.sordino_product, (self.level, given), (beta,), p, threads, _ROWS, _PACKED)
        del held

    def can_make_rows(self, g: Tensor, a: Tensor) -> bool:
        """Returns whether the product kernel can make the rows g_iᵀ a_i of g (B, T, p) and a (B, T, d), and is likely
        to be faster than torch.
        """
        t, p, d = *g.shape[1:], a.shape[2]
        large = min(p, d) >= _FEW_COLUMNS and t >= _FEW_POSITIONS and t * p * d >= _LITTLE_WORK
        return large and are_cpu_floats(g, a) and g.stride(2) == a.stride(2) == 1

    def compute_rows(self, g: Tensor, a: Tensor, out: Tensor, threads: int = 1) -> Tensor:
        """Sets out (B, p, d), dense, to g_iᵀ a_i by the product kernel, for g (B, T, p) and a (B, T, d), rows dense;
        returns ‖·‖², (B,).
        """
        (b, t, p), d = g.shape, a.shape[2]
        # Squared norms are summed in float64 while the rows are still in the cache.
        squared = torch.empty(b, dtype=torch.float64)
        # Addresses, strides and sizes as the struct in product.c has them.
        factors = (g.data_ptr(), a.data_ptr(), 0, g.stride(1), a.stride(1))
        given, held = pack_numbers((*factors, t, p, d, out.data_ptr(), out.stride(1)))
        apart, also_held = pack_numbers((g.stride(0), a.stride(0), out.stride(0)))

        leading_arguments, trailing_arguments = (self.level, given, apart), (squared.data_ptr(),)
        several = 1 if b * t * p * d < _SMALL else min(threads, b)
        run_in_parts(self.library.sordino_samples, leading_arguments, trailing_arguments, b, several, short=_PACKED)
        del held, also_held
        return squared.to(out.dtype)


@cache
def load_products() -> Products | None:
    """Returns the kernel that is used, or None: without vector instructions torch's products are faster."""
    return load_verified(build.PRODUCT, FUNCTIONS, Products, agrees_with_torch, least=1)


def agrees_with_torch(made: Products) -> bool:
    """Returns whether the product kernel gives torch's values for the weighted sum and the rows of a linear map."""
    # A weighted sum that continues an earlier one, and rows with their norms.
    rng = torch.Generator().manual_seed(0)
    g, a, w = (torch.randn(shape, generator=rng) for shape in ((300, 13), (300, 21), (300,)))
    out = torch.ones(13, 21)
    wanted = 1 + (g * w[:, None]).t() @ a
    made.add_weighted_product(g, a, w, out, 1)
    g, a, each = g.view(3, 100, 13), a.view(3, 100, 21), torch.empty(3, 13, 21)
    squared, rows = made.compute_rows(g, a, each), torch.bmm(g.mT, a)
    return are_close((out, wanted), (each, rows), (squared, rows.square().sum((1, 2))))
