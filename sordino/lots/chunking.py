"""Cuts a lot into batches, and decides which rank computes which of them.

The chunks follow from public numbers, never from the number of ranks: their sums are rounded one by one, and must be
the same whoever makes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.int64]


class LotCutting(Protocol):
    """A way to cut the lots of a run into batches and to divide these among the ranks."""

    @property
    def rank(self) -> int:
        """The rank of this process."""
        ...

    def cut(self, indices: Indices, physical_batch: int, records: int | None) -> list[Indices]:
        """Returns the batches of a lot, as indices of its records."""
        ...

    def shares_of_ranks(self, chunks: Sequence[Indices]) -> Sequence[Sequence[int]]:
        """Returns, for each rank, the numbers of the batches that it computes."""
        ...


@dataclass(frozen=True)
class CuttingInTurn:
    """Gives the batches to the ranks in turn: batch c belongs to rank c mod W."""

    rank: int
    size: int

    def cut(self, indices: Indices, physical_batch: int, records: int | None) -> list[Indices]:
        """Returns the batches of a lot, cut by the records' numbers."""
        return cut_into_batches(indices, physical_batch, records)

    def shares_of_ranks(self, chunks: Sequence[Indices]) -> Sequence[Sequence[int]]:
        """Returns the numbers of the batches of each rank, in turn; the first ranks may have one more."""
        return [range(rank, len(chunks), self.size) for rank in range(self.size)]


ONE_PROCESS = CuttingInTurn(0, 1)
"""The cutting of one process, which computes every batch."""


def cut_into_batches(indices: Indices, physical_batch: int, records: int | None = None) -> list[Indices]:
    """Returns a lot's indices, cut into chunks: batches of at most `physical_batch` records; none for an empty lot.

    Given the number of records there are, ascending indices are cut by their value, in halves of halves of the dataset
    until a batch fits: one record more or fewer changes its own batch and no other, and so the rounding of one sum
    only. Others go in as few batches as possible, of equal size or nearly.
    """
    if len(indices) <= physical_batch:
        return [indices] if len(indices) else []
    # At halves of the record numbers: one record more in a lot changes the chunk that it is in, and no other.
    if records is not None and bool((np.diff(indices) > 0).all()):
        return list(_cut_by_halves(indices, 0, records, physical_batch))
    return np.array_split(indices, -(-len(indices) // physical_batch))


def _cut_by_halves(indices: Indices, first: int, last: int, physical_batch: int) -> Iterator[Indices]:
    """Yields the ascending indices of [first, last), cut by halves into chunks that fit into a batch."""
    if len(indices) <= physical_batch:
        if len(indices):
            yield indices
        return
    middle = (first + last) // 2
    cut = int(np.searchsorted(indices, middle))
    yield from _cut_by_halves(indices[:cut], first, middle, physical_batch)
    yield from _cut_by_halves(indices[cut:], middle, last, physical_batch)
