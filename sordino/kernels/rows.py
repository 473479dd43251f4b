"""Sums of squares by row, and weighted rows, of several matrices in one call: matrices.c, where it was compiled.

A layer with one position per sample takes a dozen calls of torch for its norms and its sum, and in a small network the
calls cost more than the work. Without the library torch does the same, call by call.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.library import Unavailable, opened

_SIZE, _POINTER = ctypes.c_uint64, ctypes.c_void_p


class _Matrix(ctypes.Structure):
    _fields_ = (
        ("start", _POINTER), ("width", _SIZE), ("stride", _SIZE), ("weighted", _POINTER), ("sum", _POINTER)
    )  # fmt: skip


class Rows:
    """The library's two functions, on float32 matrices on the CPU whose rows are contiguous."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self._squared, self._weighted = library.sordino_squared, library.sordino_weighted
        self._finite = library.sordino_finite
        self._squared.argtypes = [_SIZE, _SIZE, _POINTER, _SIZE, _POINTER, _POINTER, _POINTER, _POINTER]
        self._weighted.argtypes = [_SIZE, _POINTER, _SIZE, _SIZE, _POINTER, ctypes.c_int]
        self._finite.argtypes = [_SIZE, _POINTER, _POINTER]
        self._weighted.restype = None
        self.most = _SIZE.in_dll(library, "sordino_most").value

    def squared(self, matrices: Sequence[Tensor], products: Sequence[tuple[int, int]]) -> tuple[Tensor, Tensor, bool]:
        """‖x_i‖²‖y_i‖² for pairs (x, y) of matrices, by their place, (B, pairs); y = −1 leaves it out.

        With it the sums over the pairs, (B,), and whether all is finite.
        """
        rows, columns = len(matrices[0]), len(products)
        out, sums = torch.empty(rows, columns), torch.empty(rows)
        held = (_Matrix * len(matrices))(*[(m.data_ptr(), m.shape[1], m.stride(0)) for m in matrices])
        places = (ctypes.c_int32 * (2 * columns))(*[one for one, _ in products], *[other for _, other in products])
        other = ctypes.addressof(places) + 4 * columns
        fine = self._squared(rows, len(matrices), held, columns, places, other, out.data_ptr(), sums.data_ptr())
        return out, sums, bool(fine)

    def finite(self, tensors: Sequence[Tensor]) -> bool:
        """Whether every number of these contiguous tensors is finite."""
        addresses = (_POINTER * len(tensors))(*[t.data_ptr() for t in tensors])
        sizes = (_SIZE * len(tensors))(*[t.numel() for t in tensors])
        return bool(self._finite(len(tensors), addresses, sizes))

    def weighted(
        self, weights: Tensor, matrices: Sequence[tuple[Tensor, Tensor | None, Tensor | None]], *, anew: bool
    ) -> None:
        """For each (x, to, sum): to = w_i x_i, sum = Σ w_i x_i (`anew`) or sum += that; None: not wanted."""
        held = (_Matrix * len(matrices))(
            *[
                (
                    x.data_ptr(),
                    x.shape[1],
                    x.stride(0),
                    None if to is None else to.data_ptr(),
                    None if total is None else total.data_ptr(),
                )
                for x, to, total in matrices
            ]
        )
        self._weighted(len(weights), weights.data_ptr(), weights.stride(0), len(matrices), held, anew)


def suits(matrix: Tensor) -> bool:
    """Is this a matrix the functions can read?"""
    return matrix.dtype is torch.float32 and matrix.dim() == 2 and matrix.is_cpu and matrix.stride(1) == 1


@cache
def rows() -> Rows | None:
    """The functions, or None."""
    try:
        made = Rows(opened(build.MATRICES))
    except Unavailable:
        return None
    return made if agrees(made) else None


def agrees(made: Rows) -> bool:
    """Whether the functions give what torch gives in double precision."""
    x = torch.arange(3 * 1100).remainder(7).sub(3).float().view(3, 1100)[:, :1061]
    y = x[:, :5].contiguous()
    squared = made.squared([x, y], [(0, 1), (1, -1)])[0].double()
    own = torch.stack([x.double().square().sum(1), y.double().square().sum(1)], 1)
    to, total, w = torch.zeros_like(y), torch.ones(5), torch.tensor([0.5, -1.0, 2.0])
    made.weighted(w, [(y, to, total)], anew=False)
    return (
        torch.allclose(squared[:, 0], own[:, 0] * own[:, 1], rtol=1e-6)
        and torch.allclose(squared[:, 1], own[:, 1], rtol=1e-6)
        and torch.equal(to, y * w[:, None])
        and torch.allclose(total, 1 + (y * w[:, None]).sum(0), rtol=1e-5)
    )
