"""Binding of matrices.c: row norms and weighted rows of several matrices in one call.

A layer with one position per sample takes a dozen calls of torch for its norms and its sum, and in a small network the
calls cost more than the work. Without the library torch does the same, call by call.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from sordino.kernels import build
from sordino.kernels.abi import BEST, DOUBLE, FLOAT, INT, POINTER, SIZE, are_close, load_verified, pack_numbers

FUNCTIONS = {
    "sordino_squared": (INT, INT, SIZE, SIZE, POINTER, SIZE, POINTER, POINTER, POINTER),
    "sordino_weighted": (INT, INT, SIZE, POINTER, SIZE, SIZE, POINTER, INT),
    "sordino_finite": (INT, INT, SIZE, POINTER, POINTER),
    "sordino_joined": (INT, INT, SIZE, POINTER, POINTER, POINTER, DOUBLE),
    "sordino_shortened": (None, SIZE, POINTER, FLOAT, POINTER),
    "sordino_within": (INT, SIZE, POINTER, SIZE, POINTER, FLOAT, FLOAT),
}
_ROUNDING = 1e-6  # of sums that run on in double precision
_FIELDS = 5  # of a matrix: start, width, stride, where its weighted rows go, where their sum goes


class Functions:
    """Calls the library's functions, on float32 values on the CPU."""

    def __init__(self, library: ctypes.CDLL, level: int = BEST) -> None:
        self.library, self.level = library, level
        self.most = SIZE.in_dll(library, "sordino_most").value

    @staticmethod
    def are_readable(tensors: Sequence[Tensor], most: int) -> bool:
        """Returns whether the compiled functions on matrices can read the tensors as they lie in memory, and none is
        larger than `most`.
        """
        for t in tensors:
            if t.dtype is not torch.float32 or not t.is_cpu:
                return False
        return max(map(Tensor.numel, tensors), default=0) <= most and all(map(Tensor.is_contiguous, tensors))

    def add_three(self, x: Tensor, y: Tensor, z: Tensor, factor: float) -> None:
        """Sets z = (x + y + z) · factor in double precision, rounded once, to the last bit as torch computes it."""
        where = x.data_ptr(), y.data_ptr(), z.data_ptr()
        self.library.sordino_joined(self.level, z.numel(), *where, factor)

    def clipping_factors(self, squared: Tensor, bound: float) -> Tensor:
        """Returns min(1, C / √s) of contiguous values s by the compiled matrices library, to the last bit as torch
        does; 1 of what is not a number.
        """
        out = torch.empty(squared.shape)
        self.library.sordino_shortened(squared.numel(), squared.data_ptr(), bound, out.data_ptr())
        return out

    def is_within_bound(self, weights: Tensor, squared: Tensor, floor: float, limit: float) -> bool:
        """Returns whether 0 ≤ w (√s + floor) ≤ limit for all weights (n, 1) and contiguous values s (n,)."""
        where = (weights.shape[0], weights.data_ptr(), weights.stride(0), squared.data_ptr())
        return bool(self.library.sordino_within(*where, floor, limit))

    def are_finite(self, tensors: Sequence[Tensor]) -> bool:
        """Returns whether every number of contiguous tensors is finite, by one call of the compiled matrices library."""
        n = len(tensors)
        where, held = pack_numbers([*map(Tensor.data_ptr, tensors), *map(Tensor.numel, tensors)])
        found = bool(self.library.sordino_finite(self.level, n, where, where + 8 * n))
        del held
        return found


class Matrices:
    """Holds matrices with one row per sample; each of them `is_readable_matrix`."""

    def __init__(self, compiled: Functions, matrices: Sequence[Tensor]) -> None:
        self._library, self._level, self._held = compiled.library, compiled.level, matrices
        fields: list[int] = []
        for m in matrices:
            fields += (m.data_ptr(), m.shape[1], m.stride(0), 0, 0)
        # Held as long as this object: the compiled code is given addresses, which keep nothing alive.
        self._at, self._fields = pack_numbers(fields)

    def squared_row_products(self, pairs: Sequence[int]) -> tuple[Tensor, Tensor, bool]:
        """Returns ‖x_i‖²‖y_i‖² of the rows of pairs of matrices, (B, pairs), the sums over pairs, (B,), and whether all
        is finite.

        A pair is given by the places of its matrices, one after the other; y = −1 leaves it out.
        """
        # One call measures all pairs of matrices; a pair without a second matrix counts its first alone.
        rows, columns = self._held[0].shape[0], len(pairs) // 2
        out, sums = torch.empty(rows, columns), torch.empty(rows)
        listed = array("i", pairs)
        lists = (self._at, columns, listed.buffer_info()[0])
        fine = self._library.sordino_squared(
            self._level, rows, len(self._held), *lists, out.data_ptr(), sums.data_ptr()
        )
        return out, sums, bool(fine)

    def write_weighted_rows(
        self, weights: Tensor, to: Mapping[int, Tensor], sums: Mapping[int, Tensor], *, anew: bool
    ) -> None:
        """Writes w_i x_i and Σ w_i x_i of several matrices, for the places asked for; `anew`: the sums begin at 0, not
        at what is there.
        """
        # Changed in place, because the compiled code reads them at the address that it has.
        fields = self._fields
        # Places that are not asked for are marked by an address of 0.
        for k in range(len(self._held)):
            fields[_FIELDS * k + 3] = to[k].data_ptr() if k in to else 0
            fields[_FIELDS * k + 4] = sums[k].data_ptr() if k in sums else 0
        where = (weights.shape[0], weights.data_ptr(), weights.stride(0))
        self._library.sordino_weighted(self._level, *where, len(self._held), self._at, anew)


def is_readable_matrix(m: Tensor, rows: int, most: int) -> bool:
    """Returns whether the matrices kernel can read a tensor: a matrix of so many rows, contiguous each, with at most
    `most` elements.
    """
    if m.dtype is not torch.float32 or m.dim() != 2 or not m.is_cpu:
        return False
    # Rows may lie apart, since the stride is passed on; within a row the numbers must be neighbours.
    return m.shape[0] == rows and m.stride(1) == 1 and m.numel() <= most


@cache
def load_functions() -> Functions | None:
    """Returns the functions, or None."""
    return load_verified(build.MATRICES, FUNCTIONS, Functions, agrees_with_torch)


def agrees_with_torch(made: Functions) -> bool:
    """Returns whether the compiled functions on small matrices give what torch gives in double precision."""
    # Squared norms of two matrices and of their pairs.
    # Rows with a gap behind each of them, and a length that no vector width divides.
    x = torch.arange(3 * 1100).remainder(7).sub(3).float().view(3, 1100)[:, :1061]
    y = x[:, :5].contiguous()
    both = Matrices(made, [x, y])
    squared, sums, fine = both.squared_row_products([0, 1, 1, -1])
    own = torch.stack([x.double().square().sum(1), y.double().square().sum(1)], 1)
    own[:, 0] *= own[:, 1]
    # Three vectors added up, and weighted rows with their sum.
    three = torch.stack([x[0].sin(), x[1].cos() * 2e-4, x[2].sin() * 3])
    sums_of_three, z = ((three[0].double() + three[1]) + three[2]).mul_(0.3).float(), three[2].clone()
    made.add_three(three[0], three[1], z, 0.3)
    to, total, w = torch.zeros_like(y), torch.ones(5), torch.tensor([0.5, -1.0, 2.0])
    both.write_weighted_rows(w, {1: to}, {1: total}, anew=False)
    # Exactness is asked where the kernel promises the bits of torch, and closeness where it promises rounding.
    return (
        fine
        and torch.equal(z, sums_of_three)
        and made.are_finite([x[0], y])
        and not made.are_finite([y, torch.tensor([1.0, torch.nan])])
        and are_close(*zip(squared.double().t(), own.t(), strict=True), (sums.double(), own.sum(1)), rounding=_ROUNDING)
        and torch.equal(made.clipping_factors(sums, 7.0), (sums.rsqrt() * 7.0).clamp(max=1))
        and made.is_within_bound(w[::2, None], w[::2].contiguous(), 0.0, 3.0)
        and not made.is_within_bound(w[:, None], w.abs(), 0.0, 3.0)
        and not made.is_within_bound(w[::2, None], w[::2].contiguous(), 0.5, 3.0)
        and torch.equal(to, y * w[:, None])
        and are_close((total, 1 + (y * w[:, None]).sum(0)))
    )


# The accelerations that `sordino/accelerations.py` lists. Each takes the plain function, and calls it where the library
# is not there or cannot read the tensors.

_FEW = 1 << 14
"""Number of records up to which one compiled call is faster than several of torch's."""
_SMALL = 1 << 20
"""Numbers up to which one call for all tensors is better than torch's threads."""
_ANY = 1 << 62


def accelerate_clipping(plain: Callable[[Tensor, float], Tensor]) -> Callable[[Tensor, float], Tensor]:
    """Returns a function from squared norms and a bound to clipping factors, by one call of the compiled matrices
    library for a lot of few records.
    """

    def clip_by_squares(squared: Tensor, bound: float) -> Tensor:
        """Returns the clipping factors by the compiled matrices library for a lot of few records, and by the plain
        function otherwise.
        """
        # The kernel pays for few records; for many, torch's own vector code is as fast.
        compiled = load_functions()
        if compiled is not None and compiled.are_readable((squared,), _FEW):
            return compiled.clipping_factors(squared, bound)
        return plain(squared, bound)

    return clip_by_squares


def accelerate_bound(
    plain: Callable[[Tensor, Tensor, float, float], bool],
) -> Callable[[Tensor, Tensor, float, float], bool]:
    """Returns a function that shows, by one call of the compiled matrices library for a lot of few records, that no row
    reaches beyond a limit.
    """

    def are_surely_within(weights: Tensor, squared: Tensor, floor: float, limit: float) -> bool:
        """Returns whether weighted rows stay within a limit, by the compiled matrices library for few records, and by
        the plain function otherwise.
        """
        # The same answer either way; only the time differs.
        compiled = load_functions()
        if compiled is not None and compiled.are_readable((squared, weights), _FEW):
            return compiled.is_within_bound(weights, squared, floor, limit)
        return plain(weights, squared, floor, limit)

    return are_surely_within


def accelerate_finiteness(plain: Callable[[Sequence[Tensor]], bool]) -> Callable[[Sequence[Tensor]], bool]:
    """Returns a function that looks for what is not finite in all tensors by one call of the compiled matrices library,
    if they are small.
    """

    def are_all_finite(tensors: Sequence[Tensor]) -> bool:
        """Returns whether all tensors are finite, by the compiled matrices library if they are small, and by the plain
        function otherwise.
        """
        # One call for all tensors in place of one per tensor.
        compiled = load_functions()
        if compiled is not None and compiled.are_readable(tensors, _SMALL):
            return compiled.are_finite(tensors)
        return plain(tensors)

    return are_all_finite


def accelerate_wide_addition(
    plain: Callable[[Iterable[Sequence[Tensor]], float], None],
) -> Callable[[Iterable[Sequence[Tensor]], float], None]:
    """Returns a function that adds two sums to each tensor by one call of the compiled matrices library, and to other
    tensors as the plain one does.
    """

    def add_in_float64(rows: Iterable[Sequence[Tensor]], factor: float) -> None:
        """Adds rows of three tensors by the compiled matrices library, and others by the plain function."""
        # The kernel adds in float64 and rounds once, as the plain function does.
        compiled = load_functions()
        for row in rows:
            if len(row) == 3 and compiled is not None and compiled.are_readable(row, _ANY):
                out, first, second = row
                compiled.add_three(first, second, out, factor)
            else:
                plain((row,), factor)

    return add_in_float64
