"""The compiled Gram sums of linear maps, if they are there: Σ_ts (a_t·a_s)(g_t·g_s) per sample, without a T × T matrix.

Half the work of two matrix products, since both factors are symmetric; products in float32, sums in float64 (gram.c).
torch gives the same up to rounding, and is compared with on a small case before the library is used.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.library import trusted
from sordino.kernels.threads import in_parts

LEVELS = ("portable", "AVX2")
_SPLIT = 1 << 21  # multiplications; fewer are not worth a second thread
_ROUNDING = 1e-5  # relative, of a small case


class _Factor(ctypes.Structure):
    _fields_ = (
        ("at", ctypes.c_void_p),
        ("sample", ctypes.c_int64),
        ("row", ctypes.c_int64),
        ("width", ctypes.c_int64),
    )


def _factor(x: Tensor) -> _Factor:
    return _Factor(x.data_ptr(), x.stride(0), x.stride(1), x.shape[2])


@dataclass(frozen=True)
class Grams:
    """The library's function at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int

    def __call__(self, g: Tensor, inputs: Sequence[Tensor], threads: int = 1) -> Tensor:
        """Of g (B, T, p) with each input (B, T, d): the sum and its diagonal part, (B, inputs, 2) in float64."""
        b, t, p = g.shape
        given = [x if x.stride(2) == 1 or x.shape[2] == 1 else x.contiguous() for x in (g, *inputs)]
        out = torch.empty((b, len(inputs), 2), dtype=torch.float64)
        if not out.numel():
            return out
        factors = (_Factor * len(given))(*map(_factor, given))
        short: list[int] = []

        def part(begin: int, end: int) -> None:
            at = out.data_ptr() + begin * out.stride(0) * out.element_size()
            count = len(inputs)
            if self.library.sordino_grams(self.level, ctypes.addressof(factors), count, begin, end, t, at):
                short.append(begin)

        work = b * t * t * (p + sum(x.shape[2] for x in inputs))
        in_parts(part, b, 1 if work < _SPLIT else min(threads, b))
        if short:
            raise MemoryError(f"no memory for the rows of one sample, {t} × {p}")
        return out


def usable(*tensors: Tensor) -> bool:
    """Float32 on the CPU."""
    return all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)


@cache
def grams() -> Grams | None:
    """What is used, or None."""
    return trusted(build.GRAM, lambda library: Grams(typed(library), library.sordino_level(len(LEVELS) - 1)), agrees)


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    size, pointer = ctypes.c_uint64, ctypes.c_void_p
    library.sordino_grams.argtypes = [ctypes.c_int, pointer, size, size, size, size, pointer]
    library.sordino_grams.restype = library.sordino_level.restype = ctypes.c_int
    return library


def agrees(made: Grams) -> bool:
    """Whether it gives torch's values."""
    rng = torch.Generator().manual_seed(0)
    g, a = (torch.randn(3, 11, n, generator=rng) for n in (19, 5))
    product = torch.bmm(g, g.mT) * torch.bmm(a, a.mT)
    wanted = torch.stack([product.sum((1, 2)), product.diagonal(dim1=1, dim2=2).sum(1)], 1).double()
    return bool(torch.allclose(made(g, [a])[:, 0], wanted, rtol=_ROUNDING, atol=0.0))
