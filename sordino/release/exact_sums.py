"""Exact sums of chunks on a public grid of whole numbers, equal on any number of ranks.

The bits of the sum do not depend on the order in which chunks are added:

    q = Σ over chunks of round(s_c / step),    step = 2^(⌊log₂ C⌋ − 34), C the bound

Additions of whole numbers have no order, so a sum over ranks has the bits of one process's. Noise is rounded to the same
grid, X + round(Z/step): for whole X that is round(X + Z/step), a function of the sum and the noise without any rounding of
their sum in floating point.

Privacy: a record is in one chunk; with it and without it each coordinate of the chunk's sum is rounded by at most half a
step, and where the record makes one chunk more (`loading.chunks` cuts a chunk that is too large in two) by another half. So
over d coordinates rounding moves a sum further by at most 1.5·√d steps in L2 and 1.5·d in L1; `release` adds MOVED = 2
of them, which covers the products with public factors in float64 too. At 10⁷ coordinates that is 4·10⁻⁷ of the bound.

A bounded row adds at most C·(1 + slack) to a coordinate, so a lot of fewer than 2²⁷ records stays below 2⁶³; what has no
bound is compared with the end of the numbers chunk by chunk, and refused.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.distributed.noise_division import ByRows, Division, Evenly, Stretches, split_by_tensor
from sordino.distributed.process_group import Ranks
from sordino.release.vectors import Grads, TwoPartSum, WideSum, accumulation_dtype, to_own_dtype

GRID_BITS = 34
"""Bits between the bound and a step of the grid."""
ROUNDING_STEPS = 2.0
"""Steps by which rounding may move one coordinate of a sum further, when a record comes in."""
MOST_RECORDS = 1 << 27
_SMALLEST_EXACT_STEP = 2.0**-90  # steps that float32 multiplies by without an end
MOST_CHUNK_STEPS = 2.0**50
"""Steps of one chunk's sum at most: 2¹⁴ records of 2³⁵ steps are half of it."""
_CHUNKS_IN_FLOAT64 = 1 << 3
"""Chunks added up in float64, where whole numbers are exact up to 2⁵³."""
_STRETCH = 1 << 18
"""Numbers that are made wide at once."""
MOST_STEPS = 2.0**62
"""What 64 bits hold, in steps, and something to spare."""


@dataclass(frozen=True)
class Grid:
    """A step, and public factors the tensors are multiplied by before they are rounded, as noise will see them."""

    step: float
    factors: Mapping[str, float] | None = None

    @staticmethod
    def of(bound: float, factors: Mapping[str, float] | None = None) -> Grid:
        """Returns the grid for exact sums whose rows are no longer than the bound.

        >>> Grid.of(1.0).step == Grid.of(1.9).step == 2.0**-34
        True
        """
        exponent = math.frexp(bound)[1] - 1 if bound > 0 else 0
        return Grid(2.0 ** (exponent - GRID_BITS), factors)

    def to_steps(self, name: str, tensor: Tensor) -> Tensor:
        """Returns a tensor's coordinates in steps of the grid of exact sums, as whole numbers in its own type or in
        float64; consumes the tensor.

        A step is a power of two, so without factors the product is exact in float32 too, where numbers from 2²⁴ on are
        whole already.
        """
        factor = 1.0 if self.factors is None else self.factors[name]
        exact = factor == 1.0 and _SMALLEST_EXACT_STEP < self.step < 1 / _SMALLEST_EXACT_STEP
        flat = tensor.detach().reshape(-1)
        return (flat if exact else flat.double()).mul_(factor / self.step).round_()


@dataclass(frozen=True, eq=False)
class OnGrid:
    """One rank's share of a sum: whole numbers in steps of a grid, all tensors end to end."""

    values: Tensor  # (d,), int64
    narrow: Grads  # tensors of the types and shapes of what is released
    grid: Grid
    ranks: Ranks
    shards: Mapping[str, Tensor] | None = None  # the parameters, where each rank holds some rows of them
    scattered: bool = False  # the values are this rank's rows, of the sum over all ranks

    @property
    def size(self) -> int:
        """Coordinates of the whole sum."""
        return sum([tensor.numel() for tensor in self.narrow.values()])

    @property
    def division(self) -> Division:
        """How the coordinates of exact sums on the grid are divided among the ranks."""
        if self.shards is None:
            return Evenly(self.ranks, len(self.values))
        return ByRows(self.ranks, {name: self.shards[name] for name in self.narrow})

    @property
    def own_stretches(self) -> Stretches:
        """The coordinates that this rank adds noise to."""
        return self.division.own_stretches()

    @property
    def dtype(self) -> torch.dtype:
        """The type that noise is drawn in."""
        wide = any(tensor.dtype == torch.float64 for tensor in self.narrow.values())
        return torch.float64 if wide else torch.float32

    def reduce_to_own(self) -> Tensor:
        """Returns the sums over all ranks of this rank's coordinates."""
        return self.values if self.scattered else self.division.reduce_to_own(self.values)

    def assemble_release(self, own_values: Tensor) -> Grads:
        """Returns the released tensors by parameter, put together from what each rank made of its coordinates."""
        return self.division.assemble_release(own_values, self.narrow)

    def gather_sum(self) -> WideSum:
        """Returns the complete exact sum on every rank, in float64 and without the factors.

        It is needed by taps that watch the release, and where no noise is added.
        """
        # Whole numbers are added over the ranks without rounding, and only then converted to float64.
        total = self.ranks.sum_(self._spread_over_all_coordinates()).double() * self.grid.step
        values = split_by_tensor(total, self.narrow)
        if self.grid.factors is not None:
            values = {name: tensor / self.grid.factors[name] for name, tensor in values.items()}
        return WideSum(
            {name: tensor.double() for name, tensor in values.items()}, _allocate_released(self.narrow, values)
        )

    def _spread_over_all_coordinates(self) -> Tensor:
        """Returns this rank's share of the exact sum at all coordinates."""
        # Each rank brings its own stretch, with zeros elsewhere, so that a sum over ranks puts them together.
        if not self.scattered:
            return self.values.clone()
        all_values = self.values.new_zeros(self.size)
        for (start, count), rows in zip(
            self.own_stretches, self.values.split([n for _, n in self.own_stretches]), strict=True
        ):
            all_values[start : start + count] = rows
        return all_values


class OnGridAccumulator:
    """Adds up the sums of chunks as whole numbers."""

    def __init__(
        self, grid: Grid, ranks: Ranks, step_limit: float = math.inf, shards: Mapping[str, Tensor] | None = None
    ) -> None:
        """`step_limit`: steps that no coordinate of a chunk's sum may reach; none for rows that are bounded."""
        self._grid, self._ranks, self._step_limit, self._shards = grid, ranks, step_limit, shards
        self._narrow: Grads = {}
        self._sums: Grads | None = None  # of a few chunks, in float64
        self._wide: Tensor | None = None
        self._values: Tensor | None = None
        self._chunks_held = 0  # chunks in `sums`
        self._overflowed: Tensor | None = None  # whether a sum was one that whole numbers of 64 bits do not hold

    def next_buffer(self) -> None:
        """Returns None: every chunk is added up in memory of its own, as on any other rank."""

    def add_chunk(self, chunk: Grads) -> None:
        """Adds the sum of one more chunk to the exact sums on the grid."""
        # From here on there are only whole numbers, whose additions have no order.
        rows = {name: self._grid.to_steps(name, tensor) for name, tensor in chunk.items()}
        # Rows without a bound could leave the range of 64 bits: such values are set to 0 and noted, and the lot is
        # refused later.
        if math.isfinite(self._step_limit):
            for name, row in rows.items():
                fits = row.abs() < self._step_limit  # False of what is not a number
                rows[name] = torch.where(fits, row, 0)
                overflowed = ~fits.all()
                self._overflowed = overflowed if self._overflowed is None else self._overflowed | overflowed
        # The first chunk says which tensors there are; room for the sums is taken once.
        if self._sums is None:
            self._narrow = {name: _empty_like_release(tensor) for name, tensor in chunk.items()}
            self._sums = self._allocate_sums(rows)
        for name, row in rows.items():
            if self._chunks_held:
                self._add_widened(self._sums[name], row)
            else:
                self._sums[name].copy_(row)
        # Sums in float64 are exact only for a few chunks, so they move to 64-bit integers in time.
        self._chunks_held += 1
        if self._chunks_held == _CHUNKS_IN_FLOAT64:
            self._move_to_integers()

    def _allocate_sums(self, rows: Grads) -> Grads:
        """Returns float64 memory for the exact sums of all tensors, one after the other."""
        sizes = [len(row) for row in rows.values()]
        device = next((row.device for row in rows.values()), torch.device("cpu"))
        return dict(zip(rows, self._ranks.buffers.borrow(sum(sizes), torch.float64, device).split(sizes), strict=True))

    def _add_widened(self, total: Tensor, row: Tensor) -> None:
        """Adds a row of any type to the exact sum, widened a stretch at a time: torch adds tensors of one type three
        times as fast.
        """
        if row.dtype is total.dtype:
            total.add_(row)
            return
        # One buffer for all stretches, made when it is first needed.
        if self._wide is None:
            self._wide = total.new_empty(_STRETCH)
        for total_piece, row_piece in zip(total.split(_STRETCH), row.split(_STRETCH), strict=True):
            total_piece.add_(self._wide[: len(row_piece)].copy_(row_piece))

    def _move_to_integers(self) -> None:
        """Moves the exact sums from float64, where a few sums of whole numbers are exact, to 64-bit integers."""
        assert self._sums is not None, "a lot has at least one part"
        # Integer addition is associative, so from here on the order and the number of ranks cannot change a bit.
        rows = list(self._sums.values())
        first = self._values is None
        if self._values is None:
            device = rows[0].device if rows else torch.device("cpu")
            self._values = self._ranks.buffers.borrow(sum(map(len, rows)), torch.int64, device)
        for piece, row in zip(self._values.split([len(row) for row in rows]), rows, strict=True):
            if first:
                piece.copy_(row)
            else:
                piece.add_(row.to(torch.int64))
        self._chunks_held = 0

    @property
    def has_overflowed(self) -> bool:
        """Was there a sum that whole numbers of 64 bits do not hold? Asked once for a lot: a device is waited for."""
        return self._overflowed is not None and bool(self._overflowed)

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest type that a chunk was added up in."""
        wide = bool(self._narrow) and all(t.dtype is torch.float64 for t in self._narrow.values())
        return torch.float64 if wide else torch.float32

    @property
    def total(self) -> OnGrid:
        """The share of the exact sum that this rank has."""
        if self._chunks_held or self._values is None:
            self._move_to_integers()
        assert self._values is not None, "settled"
        return OnGrid(self._values, self._narrow, self._grid, self._ranks, self._shards)


def complete_sum(total: Grads | TwoPartSum | WideSum | OnGrid) -> Grads:
    """Returns the complete sum in its own type, equal on every rank, for queries that compute with it before noise."""
    return to_own_dtype(total.gather_sum() if isinstance(total, OnGrid) else total)


def _allocate_released(narrow: Grads, values: Grads) -> Grads:
    """Returns tensors for the released values, allocated where there are none so far."""
    return {name: torch.empty_like(t, device=values[name].device) if t.is_meta else t for name, t in narrow.items()}


def _empty_like_release(tensor: Tensor) -> Tensor:
    """Returns an empty tensor for a released value; a chunk's own memory may be reused for the next chunk."""
    return torch.empty(tensor.shape, dtype=accumulation_dtype(tensor.dtype), device=tensor.device)
