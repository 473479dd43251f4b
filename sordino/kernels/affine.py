"""The compiled linear map of many rows, if it is there: x m + b for the forward pass and for the gradient at the input.

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
from sordino.kernels.library import trusted
from sordino.kernels.threads import in_parts

LEVELS = ("portable", "AVX2")
_COLUMNS = 16  # of a tile: threads begin at multiples
_SPLIT = 1 << 21  # multiplications; fewer are not worth a second thread
_LEAST = 64  # rows and columns; narrower products are torch's
_ROUNDING = 1e-5  # relative, of a small case


class _Affine(ctypes.Structure):
    _fields_ = (
        *[(name, ctypes.c_void_p) for name in ("x", "m", "bias")],
        *[(name, ctypes.c_int64) for name in ("x_row", "m_row", "m_column")],
        *[(name, ctypes.c_uint64) for name in ("rows", "k", "n")],
        ("out", ctypes.c_void_p),
        ("out_row", ctypes.c_int64),
    )


@dataclass(frozen=True)
class Affines:
    """The library's function at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int

    def takes(self, x: Tensor, m: Tensor) -> bool:
        """Whether it can do this product, and the product is large enough to be asked about."""
        return (
            x.dim() == 2
            and min(*x.shape, m.shape[1]) >= _LEAST
            and all(t.dtype == torch.float32 and t.is_cpu for t in (x, m))
            and x.stride(1) == 1
            and 1 in m.stride()
        )

    def __call__(self, x: Tensor, m: Tensor, bias: Tensor | None = None, threads: int = 1) -> Tensor:
        """X m + b for x (rows, k), rows dense, and m (k, n), rows or columns dense; nothing may be empty."""
        out = torch.empty((len(x), m.shape[1]))
        bias = None if bias is None else bias.contiguous()
        given = _Affine(x.data_ptr(), m.data_ptr(), None if bias is None else bias.data_ptr(), x.stride(0), *m.stride())
        given.rows, given.k, given.n = *x.shape, m.shape[1]
        given.out, given.out_row = out.data_ptr(), out.stride(0)
        short: list[int] = []

        def part(begin: int, end: int) -> None:
            if self.library.sordino_affine(self.level, ctypes.addressof(given), begin, end):
                short.append(begin)

        in_parts(part, m.shape[1], threads if x.numel() * m.shape[1] >= _SPLIT else 1, _COLUMNS)
        if short:
            raise MemoryError("no memory for the packed columns of a product")
        return out


@cache
def affines() -> Affines | None:
    """What is used, or None: without vector instructions torch's products are faster."""
    made = trusted(
        build.AFFINE, lambda library: Affines(typed(library), library.sordino_level(len(LEVELS) - 1)), agrees
    )
    return made if made is not None and made.level else None


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    library.sordino_affine.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint64]
    library.sordino_affine.restype = library.sordino_level.restype = ctypes.c_int
    return library


def agrees(made: Affines) -> bool:
    """Whether it gives torch's values."""
    rng = torch.Generator().manual_seed(0)
    x, w, bias = (torch.randn(shape, generator=rng) for shape in ((271, 300), (21, 300), (21,)))
    y = torch.nn.functional.linear(x, w, bias)
    pairs = ((made(x, w.t(), bias), y), (made(y, w), y @ w))
    return all(bool((found - wanted).norm() <= _ROUNDING * wanted.norm()) for found, wanted in pairs)
