"""Exact sums on the grid, parameter by parameter, for models divided among ranks by rows.

No rank ever holds a complete gradient, nor a complete sum. Each chunk's sum for one parameter is rounded to whole
numbers as any other (`exact_sums.py`) and reduced over the ranks at once (`distributed/collectives_on_demand.py`); a
rank keeps its own rows of the sum over all ranks. Whole numbers have no order of addition, so the bits are those of a
sum that was added up chunk by chunk on each rank first.

Privacy: the argument of `exact_sums.py` holds here too, because what a chunk adds is rounded exactly once, whichever
rank computes it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from sordino.distributed import row_shard
from sordino.distributed.collectives_on_demand import CollectiveRounds
from sordino.distributed.process_group import Ranks
from sordino.release.exact_sums import Grid, OnGrid
from sordino.release.vectors import Grads, accumulation_dtype


class ByRowsAccumulator:
    """Accumulates the sum over all ranks and keeps the rows that belong to this rank."""

    def __init__(
        self,
        grid: Grid,
        ranks: Ranks,
        rounds: CollectiveRounds,
        shards: Mapping[str, Tensor],
        step_limit: float = math.inf,
    ) -> None:
        """Prepares zeros for this rank's rows and registers to receive them.

        `shards` are the parameters that are trained; `step_limit` is the number of steps that no coordinate of a chunk's
        sum may reach.
        """
        self._grid, self._ranks, self._rounds, self._step_limit, self._shards = grid, ranks, rounds, step_limit, shards
        self._narrow: Grads = {
            name: torch.empty(p.shape, dtype=accumulation_dtype(p.dtype), device="meta") for name, p in shards.items()
        }
        # One vector of integers holds this rank's rows of all parameters, one after the other.
        counts = [row_shard.own_stretch(p)[1] for p in shards.values()]
        device = next((row_shard.local_rows(p).device for p in shards.values()), torch.device("cpu"))
        self._values = torch.zeros(sum(counts), dtype=torch.int64, device=device)
        self._rows = dict(zip(shards, self._values.split(counts), strict=True))
        # A round of collectives names a parameter by its number; this maps names to numbers and back.
        names = {id(p): name for name, p in shards.items()}
        self._names = {number: names[id(p)] for number, p in enumerate(rounds.shards) if id(p) in names}
        self._numbers = {name: number for number, name in self._names.items()}
        self._overflowed: Tensor | None = None
        rounds.on_receive = self._add_own_rows

    def add_chunk(self, chunk: Iterable[tuple[str, Tensor]]) -> None:
        """Adds one more chunk to exact sums divided by rows, one parameter at a time; the tensors are consumed."""
        for name, tensor in chunk:
            row = self._grid.to_steps(name, tensor)
            # A rule without a proof may exceed its bound; what does not fit is left out, and the overflow is reported.
            if math.isfinite(self._step_limit):
                fits = row.abs() < self._step_limit  # False of what is not a number
                row, overflowed = torch.where(fits, row, 0), ~fits.all()
                self._overflowed = overflowed if self._overflowed is None else self._overflowed | overflowed
            self._rounds.contribute_sum(self._numbers[name], row.to(torch.int64))

    def _add_own_rows(self, number: int, own_rows: Tensor) -> None:
        self._rows[self._names[number]].add_(own_rows)

    @property
    def has_overflowed(self) -> bool:
        """Was there a sum that whole numbers of 64 bits do not hold?"""
        return self._overflowed is not None and bool(self._overflowed)

    @property
    def dtype(self) -> torch.dtype:
        """The narrowest type that a chunk was added up in."""
        wide = bool(self._narrow) and all(t.dtype is torch.float64 for t in self._narrow.values())
        return torch.float64 if wide else torch.float32

    @property
    def total(self) -> OnGrid:
        """The rows of the sum that this rank has."""
        return OnGrid(self._values, self._narrow, self._grid, self._ranks, self._shards, scattered=True)
