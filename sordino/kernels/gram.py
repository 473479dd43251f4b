"""Binding of the compiled Gram sums of linear maps, which need no T × T matrix.

Σ_ts (a_t·a_s)(g_t·g_s) per sample is half the work of two matrix products, since both factors are symmetric; products
in float32, sums in float64 (gram.c). torch gives the same up to rounding, and is compared with on a small case before
the library is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain

import torch
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.abi import FLOAT, INT, POINTER, SIZE, STEP, are_close, load_verified, make_struct, run_in_parts

FUNCTIONS = {"sordino_grams": (INT, INT, POINTER, SIZE, SIZE, SIZE, SIZE, POINTER, FLOAT, POINTER)}
_SPLIT = 1 << 21  # multiplications; fewer are not worth a second thread

_Factor = make_struct("factor_t", at=POINTER, sample=STEP, row=STEP, width=STEP)


@dataclass(frozen=True)
class Grams:
    """Calls the library's function at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int

    def __call__(self, g: Tensor, inputs: Sequence[Tensor], threads: int = 1, floor: float = 0.0) -> Tensor:
        """Returns, of g (B, T, p) with each input (B, T, d), the Gram sum, its diagonal part and Σ_t ‖a_t‖‖g_t‖.

        The result is (B, inputs, 3) in float64. To the square of such a length `floor` is added for each element.
        """
        return self._run_all_samples(g, inputs, g.shape[1], None, threads, floor)

    def sum_stretches(self, g: Tensor, a: Tensor, ranges: Sequence[tuple[int, int]], threads: int = 1) -> Tensor:
        """Returns the three Gram sums of stretches of the rows of g (R, p) and a (R, d), (B, 3), by the compiled
        kernel.

        A stretch is given by its first row and its number of rows.
        """
        listed = (ctypes.c_uint64 * (2 * len(ranges)))(*chain.from_iterable(ranges))
        rows = [x if x.stride(1) == 1 else x.contiguous() for x in (g, a)]
        g, a = (x.expand(len(ranges), *x.shape) for x in rows)  # every stretch is one of the same rows
        return self._run_all_samples(g, [a], max([n for _, n in ranges], default=0), listed, threads, 0.0)[:, 0]

    def _run_all_samples(
        self,
        g: Tensor,
        inputs: Sequence[Tensor],
        t: int,
        ranges: ctypes.Array[ctypes.c_uint64] | None,
        threads: int,
        floor: float,
    ) -> Tensor:
        """Runs the compiled Gram function over all samples, with rows made dense, divided among threads."""
        (b, _, p), count = g.shape, len(inputs)
        # The kernel reads rows that are dense; what is laid out otherwise is copied once.
        given = [x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous() for x in (g, *inputs)]
        out = torch.empty((b, count, 3), dtype=torch.float64)
        if not out.numel():
            return out
        factors = (_Factor * len(given))(*[_Factor(x.data_ptr(), x.stride(0), x.stride(1), x.shape[2]) for x in given])
        listed = None if ranges is None else ctypes.addressof(ranges)

        # Threads are worth waking from some work on. Each takes whole samples.
        work = b * t * t * (p + sum(x.shape[2] for x in inputs))
        several = 1 if work < _SPLIT else min(threads, b)
        leading_arguments, trailing_arguments = (
            (self.level, ctypes.addressof(factors), count),
            (t, listed, floor, out.data_ptr()),
        )
        run_in_parts(
            self.library.sordino_grams,
            leading_arguments,
            trailing_arguments,
            b,
            several,
            short=f"the rows of one sample, {t} × {p}",
        )
        return out


@cache
def load_grams() -> Grams | None:
    """Returns the kernel that is used, or None."""
    return load_verified(build.GRAM, FUNCTIONS, Grams, agrees_with_torch)


def agrees_with_torch(made: Grams) -> bool:
    """Returns whether the compiled Gram sums of a linear map give torch's values."""
    # The sum, its diagonal and the diagonal's roots, which bound the rounding.
    rng = torch.Generator().manual_seed(0)
    g, a = (torch.randn(3, 11, n, generator=rng) for n in (19, 5))
    product = torch.bmm(g, g.mT) * torch.bmm(a, a.mT)
    diagonal = product.diagonal(dim1=1, dim2=2)
    wanted = product.sum((1, 2)), diagonal.sum(1), diagonal.sqrt().sum(1)
    return are_close(*zip(made(g, [a])[:, 0].unbind(1), (each.double() for each in wanted), strict=True))
