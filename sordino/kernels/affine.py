"""Binding of the compiled linear map of many rows, x m + b, for forward pass and input gradient.

Both need the same product, once with the weight's transpose and once with the weight, which is packed in passing
(affine.c). torch gives the same up to rounding, and is compared with on a small case before the library is used.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.abi import (
    INT,
    POINTER,
    SIZE,
    STEP,
    address_of,
    are_close,
    load_verified,
    make_struct,
    run_in_parts,
)
from sordino.kernels.kernel_tensors import are_cpu_floats

FUNCTIONS = {"sordino_affine": (INT, INT, POINTER, SIZE, SIZE)}
_COLUMNS = 32  # of the widest tile: threads begin at multiples
_SPLIT = 1 << 21  # multiplications; fewer are not worth a second thread
_LEAST = 64  # rows and columns; narrower products are torch's

_Affine = make_struct(
    "affine_t",
    x=POINTER, m=POINTER, bias=POINTER, x_row=STEP, m_row=STEP, m_column=STEP, rows=SIZE, k=SIZE, n=SIZE,
    out=POINTER, out_row=STEP,
)  # fmt: skip


@dataclass(frozen=True)
class Affines:
    """Calls the library's function at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int

    def can_multiply(self, x: Tensor, m: Tensor) -> bool:
        """Returns whether the compiled affine map x m + b takes this product, and the product is large enough to be
        asked about.
        """
        # Everything else is left to torch: other types and devices, small products, and rows with gaps.
        return (
            x.dim() == 2
            and min(*x.shape, m.shape[1]) >= _LEAST
            and are_cpu_floats(x, m)
            and x.stride(1) == 1
            and 1 in m.stride()
        )

    def __call__(self, x: Tensor, m: Tensor, bias: Tensor | None = None, threads: int = 1) -> Tensor:
        """Returns x m + b for x (rows, k), rows dense, and m (k, n), rows or columns dense; nothing may be empty."""
        # The kernel writes every element, so the result needs no zeros.
        out, n = torch.empty((len(x), m.shape[1])), m.shape[1]
        bias = None if bias is None else bias.contiguous()
        given = _Affine(
            x.data_ptr(), m.data_ptr(), address_of(bias), x.stride(0), *m.stride(), *x.shape, n, out.data_ptr(), n
        )

        # Small products cost less than waking threads does.
        several = threads if x.numel() * n >= _SPLIT else 1
        leading_arguments = (self.level, ctypes.addressof(given))
        run_in_parts(
            self.library.sordino_affine, leading_arguments, (), n, several, _COLUMNS, "the packed columns of a product"
        )
        return out


@cache
def load_affines() -> Affines | None:
    """Returns the kernel that is used, or None: without vector instructions torch's products are faster."""
    return load_verified(build.AFFINE, FUNCTIONS, Affines, agrees_with_torch, least=1)


def agrees_with_torch(made: Affines) -> bool:
    """Returns whether the compiled affine map x m + b gives torch's values."""
    rng = torch.Generator().manual_seed(0)
    x, w, bias = (torch.randn(shape, generator=rng) for shape in ((271, 300), (21, 300), (21,)))
    y = torch.nn.functional.linear(x, w, bias)
    return are_close((made(x, w.t(), bias), y), (made(y, w), y @ w))
