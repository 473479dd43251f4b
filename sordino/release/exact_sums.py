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

from sordino.distributed.noise_division import ByRows, Division, Evenly, Stretches, apart
from sordino.distributed.process_group import Ranks
from sordino.release.vectors import Grads, Summed, TwoPartSum, accumulation_dtype, rounded

FINE = 34
"""Bits between the bound and a step of the grid."""
MOVED = 2.0
"""Steps by which rounding may move one coordinate of a sum further, when a record comes in."""
MOST_RECORDS = 1 << 27
_LEAST = 2.0**-90  # steps that float32 multiplies by without an end
LONGEST = 2.0**50
"""Steps of one chunk's sum at most: 2¹⁴ records of 2³⁵ steps are half of it."""
_EXACT = 1 << 3
"""Chunks added up in float64, where whole numbers are exact up to 2⁵³."""
_STRETCH = 1 << 18
"""Numbers that are made wide at once."""
END = 2.0**62
"""What 64 bits hold, in steps, and something to spare."""


@dataclass(frozen=True)
class Grid:
    """A step, and public factors the tensors are multiplied by before they are rounded, as noise will see them."""

    step: float
    factors: Mapping[str, float] | None = None

    @staticmethod
    def of(bound: float, factors: Mapping[str, float] | None = None) -> Grid:
        """Returns the grid for sums whose rows are no longer than the bound.

        >>> Grid.of(1.0).step == Grid.of(1.9).step == 2.0**-34
        True
        """
        exponent = math.frexp(bound)[1] - 1 if bound > 0 else 0
        return Grid(2.0 ** (exponent - FINE), factors)

    def rounded(self, name: str, tensor: Tensor) -> Tensor:
        """Returns a tensor's coordinates in steps, as whole numbers in its own type or in float64; consumes the tensor.

        A step is a power of two, so without factors the product is exact in float32 too, where numbers from 2²⁴ on are
        whole already.
        """
        factor = 1.0 if self.factors is None else self.factors[name]
        exact = factor == 1.0 and _LEAST < self.step < 1 / _LEAST
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
        """Whose coordinates are whose."""
        if self.shards is None:
            return Evenly(self.ranks, len(self.values))
        return ByRows(self.ranks, {name: self.shards[name] for name in self.narrow})

    @property
    def own(self) -> Stretches:
        """The coordinates that this rank adds noise to."""
        return self.division.own()

    @property
    def dtype(self) -> torch.dtype:
        """The type that noise is drawn in."""
        wide = any(tensor.dtype == torch.float64 for tensor in self.narrow.values())
        return torch.float64 if wide else torch.float32

    def own_sums(self) -> Tensor:
        """Returns the sums over all ranks of this rank's coordinates."""
        return self.values if self.scattered else self.division.own_sums(self.values)

    def released(self, own: Tensor) -> Grads:
        """Returns the released tensors by parameter, put together from what each rank made of its coordinates."""
        return self.division.released(own, self.narrow)

    def summed(self) -> Summed:
        """Returns the complete sum on every rank, in float64 and without the factors.

        It is needed by taps that watch the release, and where no noise is added.
        """
        total = self.ranks.sum_(self._everywhere()).double() * self.grid.step
        values = apart(total, self.narrow)
        if self.grid.factors is not None:
            values = {name: tensor / self.grid.factors[name] for name, tensor in values.items()}
        return Summed({name: tensor.double() for name, tensor in values.items()}, _here(self.narrow, values))

    def _everywhere(self) -> Tensor:
        """Returns this rank's share of the sum at all coordinates."""
        if not self.scattered:
            return self.values.clone()
        whole = self.values.new_zeros(self.size)
        for (start, count), rows in zip(self.own, self.values.split([n for _, n in self.own]), strict=True):
            whole[start : start + count] = rows
        return whole


class OnGridAccumulator:
    """Adds up the sums of chunks as whole numbers."""

    def __init__(
        self, grid: Grid, ranks: Ranks, most: float = math.inf, shards: Mapping[str, Tensor] | None = None
    ) -> None:
        """`most`: steps that no coordinate of a chunk's sum may reach; none for rows that are bounded."""
        self._grid, self._ranks, self._most, self._shards = grid, ranks, most, shards
        self._narrow: Grads = {}
        self._sums: Grads | None = None  # of a few chunks, in float64
        self._wide: Tensor | None = None
        self._values: Tensor | None = None
        self._held = 0  # chunks in `sums`
        self._past: Tensor | None = None  # whether a sum was one that whole numbers of 64 bits do not hold

    def room(self) -> None:
        """Returns None: every chunk is added up in memory of its own, as on any other rank."""

    def take(self, chunk: Grads) -> None:
        """Adds the sum of one more chunk."""
        # From here on there are only whole numbers, whose additions have no order.
        rows = {name: self._grid.rounded(name, tensor) for name, tensor in chunk.items()}
        # Rows without a bound could leave the range of 64 bits: such values are set to 0 and noted, and the lot is
        # refused later.
        if math.isfinite(self._most):
            for name, row in rows.items():
                fits = row.abs() < self._most  # False of what is not a number
                rows[name] = torch.where(fits, row, 0)
                past = ~fits.all()
                self._past = past if self._past is None else self._past | past
        # The first chunk says which tensors there are; room for the sums is taken once.
        if self._sums is None:
            self._narrow = {name: _empty(tensor) for name, tensor in chunk.items()}
            self._sums = self._room(rows)
        for name, row in rows.items():
            if self._held:
                self._add(self._sums[name], row)
            else:
                self._sums[name].copy_(row)
        # Sums in float64 are exact only for a few chunks, so they move to 64-bit integers in time.
        self._held += 1
        if self._held == _EXACT:
            self._settle()

    def _room(self, rows: Grads) -> Grads:
        """Returns float64 memory for the sums of all tensors, one after the other."""
        sizes = [len(row) for row in rows.values()]
        device = next((row.device for row in rows.values()), torch.device("cpu"))
        return dict(zip(rows, self._ranks.kept.take(sum(sizes), torch.float64, device).split(sizes), strict=True))

    def _add(self, total: Tensor, row: Tensor) -> None:
        """Adds a row of any type, widened a stretch at a time: torch adds tensors of one type three times as fast."""
        if row.dtype is total.dtype:
            total.add_(row)
            return
        if self._wide is None:
            self._wide = total.new_empty(_STRETCH)
        for some, more in zip(total.split(_STRETCH), row.split(_STRETCH), strict=True):
            some.add_(self._wide[: len(more)].copy_(more))

    def _settle(self) -> None:
        """Moves the sums from float64, where a few sums of whole numbers are exact, to 64-bit integers."""
        assert self._sums is not None, "a lot has at least one part"
        rows = list(self._sums.values())
        first = self._values is None
        if self._values is None:
            device = rows[0].device if rows else torch.device("cpu")
            self._values = self._ranks.kept.take(sum(map(len, rows)), torch.int64, device)
        for some, row in zip(self._values.split([len(row) for row in rows]), rows, strict=True):
            if first:
                some.copy_(row)
            else:
                some.add_(row.to(torch.int64))
        self._held = 0

    @property
    def past_the_end(self) -> bool:
        """Was there a sum that whole numbers of 64 bits do not hold? Asked once for a lot: a device is waited for."""
        return self._past is not None and bool(self._past)

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest type that a chunk was added up in."""
        wide = bool(self._narrow) and all(t.dtype is torch.float64 for t in self._narrow.values())
        return torch.float64 if wide else torch.float32

    @property
    def total(self) -> OnGrid:
        """The share of the sum that this rank has."""
        if self._held or self._values is None:
            self._settle()
        assert self._values is not None, "settled"
        return OnGrid(self._values, self._narrow, self._grid, self._ranks, self._shards)


def whole(total: Grads | TwoPartSum | Summed | OnGrid) -> Grads:
    """Returns the complete sum in its own type, equal on every rank, for queries that compute with it before noise."""
    return rounded(total.summed() if isinstance(total, OnGrid) else total)


def _here(narrow: Grads, values: Grads) -> Grads:
    """Returns tensors for the released values, allocated where there are none so far."""
    return {name: torch.empty_like(t, device=values[name].device) if t.is_meta else t for name, t in narrow.items()}


def _empty(tensor: Tensor) -> Tensor:
    """Returns an empty tensor for a released value; a chunk's own memory may be reused for the next chunk."""
    return torch.empty(tensor.shape, dtype=accumulation_dtype(tensor.dtype), device=tensor.device)
