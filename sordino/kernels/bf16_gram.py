"""Binding of the compiled Gram sums of linear maps from bfloat16.

They are Σ_ts (a_t·a_s)(g_t·g_s) per sample. It is for processors that multiply pairs of bfloat16 at twice the rate of
float32; products are exact, sums of 128 of them float32, and the sum over positions float64 (bf16_gram.c). Values below
2⁻¹²⁶ count as zero (`bf16_product`).
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.abi import FLOAT, INT, POINTER, SIZE, are_close, load_verified, pack_numbers, run_in_parts

FUNCTIONS = {"sordino_bf16_grams": (INT, INT, POINTER, POINTER, SIZE, SIZE, SIZE, FLOAT, POINTER)}
_SPLIT = 1 << 22  # multiplications; fewer are not worth a second thread


@dataclass(frozen=True)
class LowGrams:
    """Calls the library's function, for bfloat16.

    Fields of factor_t: where it lies, the steps from sample to sample and from row to row, its width.
    """

    library: ctypes.CDLL
    level: int

    def __call__(self, g: Tensor, inputs: Sequence[Tensor], threads: int = 1, floor: float = 0.0) -> Tensor:
        """Returns the Gram sums of g (B, T, p) with each input (B, T, d), rows dense, (B, inputs, 3) in float64.

        The three are those of `Grams`.
        """
        return torch.stack([self._gram_sums_of(g, a, threads, floor) for a in inputs], 1)

    def _gram_sums_of(self, g: Tensor, a: Tensor, threads: int, floor: float) -> Tensor:
        """Returns the Gram sums of a linear map with one input, (B, 3), read from bfloat16 (bf16)."""
        (b, t, p), d = g.shape, a.shape[2]
        out = torch.empty((b, 3), dtype=torch.float64)
        # Sums are formed in float64: products of bfloat16 numbers are exact in float32, and their sum must not read
        # low.
        (left, held), (right, also_held) = (
            pack_numbers((x.data_ptr(), x.stride(0), x.stride(1), x.shape[2])) for x in (g, a)
        )
        leading_arguments, trailing_arguments = (self.level, left, right), (t, floor, out.data_ptr())
        # Samples are independent, so they are divided among threads and no sum depends on their number.
        several = 1 if b * t * t * (p + d) < _SPLIT else min(threads, b)
        run_in_parts(
            self.library.sordino_bf16_grams,
            leading_arguments,
            trailing_arguments,
            b,
            several,
            short=f"the rows of one sample, {t} × {p}",
        )
        del held, also_held
        return out


@cache
def load_low_grams() -> LowGrams | None:
    """Returns the kernel that is used, or None."""
    return load_verified(build.BF16_GRAM, FUNCTIONS, LowGrams, agrees_with_torch, least=1)


def agrees_with_torch(made: LowGrams) -> bool:
    """Returns whether the compiled Gram sums from bfloat16 (bf16) give torch's values."""
    # Random numbers in odd sizes, compared with float64.
    rng = torch.Generator().manual_seed(0)
    g, a = (torch.randn(3, 19, n, generator=rng).bfloat16() for n in (39, 5))
    product = torch.bmm(g.double(), g.double().mT) * torch.bmm(a.double(), a.double().mT)
    diagonal = product.diagonal(dim1=1, dim2=2)
    wanted = product.sum((1, 2)), diagonal.sum(1), diagonal.sqrt().sum(1)
    return are_close(*zip(made(g, [a])[:, 0].unbind(1), wanted, strict=True))
