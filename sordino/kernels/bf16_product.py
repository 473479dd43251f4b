"""Binding of the compiled products of a linear map's per-sample gradients from bfloat16.

    sum:   out = β out + Σ_i w_i g_iᵀ a_i    weights and sums in float32: nothing is rounded to bfloat16
    rows:  g_iᵀ a_i of every sample          with its sum of squares, taken while a tile is near
    bias:  Σ_t g_it of every sample

It is for processors that multiply pairs of bfloat16 at twice the rate of float32 (avx512_bf16); elsewhere the values
are copied to float32 and multiplied there. Products of two bfloat16 are exact in float32, so both ways differ by the
rounding of sums alone, with one exception: the instruction takes values below 2⁻¹²⁶ for zero and gives none below. What
that hides of a norm is within the floor that every element adds to the lengths of terms (`matrix_product.vanishing`).
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.abi import INT, POINTER, SIZE, STEP, are_close, load_verified, pack_numbers, run_in_parts

FUNCTIONS = {
    "sordino_bf16_sum": (INT, INT, POINTER, SIZE, SIZE, INT),
    "sordino_bf16_rows": (INT, INT, POINTER, STEP, SIZE, SIZE, POINTER),
    "sordino_bf16_columns": (INT, INT, POINTER, SIZE, SIZE),
}
_ROWS = 12  # of a tile: threads begin at multiples
_FEW_POSITIONS, _FEW_COLUMNS, _LITTLE_WORK = 16, 32, 1 << 17
"""Sizes of one sample, the last in multiplications, from which on copies to float32 cost more."""
_SMALL = 1 << 22  # multiplications; fewer are not worth a second thread
_PACKED = "a few packed rows of a product"


@dataclass(frozen=True)
class LowProducts:
    """Calls the library's functions, for bfloat16.

    Fields of product_t: g, a, w, the steps from sample to sample and from row to row of g and of a, samples, t, p, d,
    out and its step.
    """

    library: ctypes.CDLL
    level: int

    def can_multiply(self, g: Tensor, a: Tensor) -> bool:
        """Returns whether the bfloat16 (bf16) product kernel reads g (B, T, p) and a (B, T, d), and is likely to be
        faster than copies to float32.
        """
        t, p, d = *g.shape[1:], a.shape[2]
        large = min(p, d) >= _FEW_COLUMNS and t >= _FEW_POSITIONS and t * p * d >= _LITTLE_WORK
        return large and can_read(g, a)

    def add_weighted_product(self, g: Tensor, a: Tensor, w: Tensor, out: Tensor, beta: int, threads: int = 1) -> None:
        """Sets out (p, d) = β out + Σ_i w_i g_iᵀ a_i by the compiled product from bfloat16 (bf16), for g (B, T, p), a
        (B, T, d) and w (B,), rows dense; β is 0 or 1.
        """
        w, p = w.contiguous(), g.shape[2]
        given, held = pack_numbers(_product_fields(g, a, w, out))
        several = 1 if g.numel() * a.shape[2] < _SMALL else threads
        run_in_parts(self.library.sordino_bf16_sum, (self.level, given), (beta,), p, several, _ROWS, _PACKED)
        del held

    def compute_rows(self, g: Tensor, a: Tensor, out: Tensor, threads: int = 1) -> Tensor:
        """Sets out (B, p, d), dense, to the products g_iᵀ a_i of bfloat16 (bf16) tensors g (B, T, p) and a (B, T, d),
        rows dense; returns ‖·‖², (B,).
        """
        # Products of bfloat16 numbers are exact in float32; sums of squares are formed in float64.
        b = len(g)
        squared = torch.empty(b, dtype=torch.float64)
        given, held = pack_numbers(_product_fields(g, a, None, out))
        leading_arguments, trailing_arguments = (self.level, given, out.stride(0)), (squared.data_ptr(),)
        # Small products are not worth waking threads for.
        several = 1 if g.numel() * a.shape[2] < _SMALL else min(threads, b)
        run_in_parts(self.library.sordino_bf16_rows, leading_arguments, trailing_arguments, b, several, short=_PACKED)
        del held
        return squared.to(out.dtype)

    def sum_over_positions(self, g: Tensor, threads: int = 1) -> Tensor:
        """Returns Σ_t g_it, (B, p) in float32, for g (B, T, p) in bfloat16 (bf16), rows dense: the product kernel's sum
        for a bias.
        """
        out = torch.empty(len(g), g.shape[2])
        given, held = pack_numbers(_product_fields(g, g, None, out))
        several = 1 if g.numel() < _SMALL else min(threads, len(g))
        run_in_parts(self.library.sordino_bf16_columns, (self.level, given), (), len(g), several, short=_PACKED)
        del held
        return out


def can_read(*tensors: Tensor) -> bool:
    """Returns whether all are bfloat16 on the CPU with their last dimension dense, which is what these kernels read."""
    return all([x.dtype is torch.bfloat16 and x.is_cpu and x.stride(-1) == 1 for x in tensors])  # noqa: C419


def _product_fields(g: Tensor, a: Tensor, w: Tensor | None, out: Tensor) -> tuple[int, ...]:
    """Returns the fields of product_t, the struct of the compiled products from bfloat16 (bf16)."""
    factors = (g.data_ptr(), a.data_ptr(), 0 if w is None else w.data_ptr())
    steps = (g.stride(0), g.stride(1), a.stride(0), a.stride(1))
    return (*factors, *steps, *g.shape, a.shape[2], out.data_ptr(), out.stride(-2))


@cache
def load_low_products() -> LowProducts | None:
    """Returns the kernel that is used, or None."""
    return load_verified(build.BF16_PRODUCT, FUNCTIONS, LowProducts, agrees_with_torch, least=1)


def agrees_with_torch(made: LowProducts) -> bool:
    """Returns whether the compiled products from bfloat16 (bf16) give torch's values."""
    # Odd sizes exercise the ends of vectors and panels.
    rng = torch.Generator().manual_seed(0)
    g, a, w = (torch.randn(shape, generator=rng) for shape in ((3, 101, 13), (3, 101, 37), (3,)))
    g, a, out, each = g.bfloat16(), a.bfloat16(), torch.ones(13, 37), torch.empty(3, 13, 37)
    rows = torch.bmm(g.float().mT, a.float())
    made.add_weighted_product(g, a, w, out, 1)
    squared = made.compute_rows(g, a, each)
    wanted = 1 + (rows * w[:, None, None]).sum(0)
    biases = made.sum_over_positions(a), a.float().sum(1)
    return are_close((out, wanted), (each, rows), (squared, rows.square().sum((1, 2))), biases)
