"""Data owners: records that stay where they are, at sites that are each held by some rank.

    data = sd.Sites([40_000, 35_000, 50_000], {1: second})     # on the rank that holds the second of three

A draw is a list of numbers, which every rank makes without seeing a record. A lot is cut at the borders of the sites,
and the rank that holds a site computes its chunks. So the same sites give the same bits however many ranks hold them,
and no record moves; what does move is sums.

Privacy: the draw is that of one process over all records, by one stream, and so is what it is worth. Sites have no
streams of their own: a coin belongs to a record, whoever holds it. The numbers of records are public, as that of a
dataset is. Sums that leave a site are not noised yet (`distributed/process_group.py`): this is about where data lie,
not about ranks that mistrust each other.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from torch.utils.data import ConcatDataset, Dataset

from sordino import validate
from sordino.lots.chunking import Indices, chunks
from sordino.refusal import Refusal

if TYPE_CHECKING:
    from sordino.lots.loading import Alter, Loader, Reads


class Sites(Dataset[Any]):
    """The records of all sites, one site after the other, of which some are held here.

    >>> data = Sites([2, 3], {1: ["a", "b", "c"]})
    >>> len(data), data[2], data.places(np.array([0, 3])).tolist(), data.numbers(np.array([1])).tolist()
    (5, 'a', [1], [3])
    """

    def __init__(self, lengths: Sequence[int], held: Mapping[int, Any]) -> None:
        self.lengths = tuple(validate.count("lengths", each) for each in lengths)
        self.held = dict(sorted(held.items()))
        self.ends = np.cumsum(self.lengths)
        for number, dataset in self.held.items():
            if not 0 <= number < len(self.lengths):
                raise ValueError(f"site {number}: there are {len(self.lengths)} of them, counted from 0")
            if len(dataset) != self.lengths[number]:
                raise ValueError(f"site {number} has {len(dataset)} records, and lengths says {self.lengths[number]}")
        if not self.held:
            raise ValueError("held={}: every rank needs a site; give fewer ranks, or cut a site in two")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> Any:
        site = int(np.searchsorted(self.ends, index, side="right"))
        return self.of(site, self.held)[index - self.begin(site)]

    def of(self, site: int, by_site: Mapping[int, Any]) -> Any:
        """Returns the entry of a site in `by_site`; raises Refusal if this rank does not hold the site."""
        if site not in by_site:
            raise Refusal(f"a record of site {site} was asked for on a rank that holds {list(self.held)}")
        return by_site[site]

    def begin(self, site: int) -> int:
        """Returns the number of a site's first record among all records."""
        return int(self.ends[site]) - self.lengths[site]

    @property
    def here(self) -> ConcatDataset[Any]:
        """The records that are held here, as one dataset."""
        return ConcatDataset(list(self.held.values()))

    def places(self, indices: Indices) -> Indices:
        """Returns the places, among the records held here, of those of `indices` that are held here."""
        found, before = [indices[:0]], 0
        for site in self.held:
            begin = self.begin(site)
            of = indices[(indices >= begin) & (indices < self.ends[site])]
            found.append(of - begin + before)
            before += self.lengths[site]
        return np.concatenate(found)

    def numbers(self, places: Indices) -> Indices:
        """Returns the numbers among all records of those that stand here at these places."""
        ends = np.cumsum([self.lengths[site] for site in self.held])  # here
        further = np.array([self.ends[site] for site in self.held]) - ends
        return np.asarray(places + further[np.searchsorted(ends, places, side="right")], dtype=np.int64)


@dataclass(frozen=True, eq=False)
class BySite:
    """Cuts a lot at the borders of sites; a batch belongs to the rank that computes its site."""

    ends: Indices  # of the sites
    owners: tuple[int, ...]  # of each site, a rank
    rank: int
    size: int

    def chunks(self, indices: Indices, physical_batch: int, records: int | None) -> list[Indices]:
        """Returns the batches of a lot, cut by site, and within a site by the records' numbers."""
        of = np.searchsorted(self.ends, indices, side="right")
        found: list[Indices] = []
        for site, end in enumerate(self.ends):
            begin = 0 if site == 0 else int(self.ends[site - 1])
            here = indices[of == site] - begin
            found += [part + begin for part in chunks(here, physical_batch, int(end) - begin)]
        return found

    def shares(self, chunks: Sequence[Indices]) -> Sequence[Sequence[int]]:
        """Returns the numbers of the batches of each rank: those of the sites that it computes."""
        found: list[list[int]] = [[] for _ in range(self.size)]
        for number, part in enumerate(chunks):
            site = int(np.searchsorted(self.ends, part[0], side="right"))
            found[self.owners[site]].append(number)
        return found


def owners(held: Sequence[Sequence[int]], sites: int) -> tuple[int, ...]:
    """Returns which rank computes each site, of those that hold it: one that computes the fewest so far.

    >>> owners([[0, 1], [1, 2]], 3)
    (0, 1, 1)
    """
    found: list[int] = []
    for site in range(sites):
        holders = [rank for rank, each in enumerate(held) if site in each]
        if not holders:
            raise Refusal(f"site {site} is held by no rank: need each of the {sites} sites on one of them")
        found.append(min(holders, key=lambda rank: (found.count(rank), rank)))
    return tuple(found)


class OwnRecords:
    """A reader of the records that are held here, numbered from 0."""

    def __init__(self, load: Reads, sites: Sites) -> None:
        self._load, self._sites = load, sites

    def unread(self) -> OwnRecords:
        """Returns a reader as if nothing had been read."""
        return OwnRecords(self._load.unread(), self._sites)

    def by_record(self, indices: Indices) -> tuple[Loader, Indices]:
        """Returns the loader of single records of all sites, and the numbers of these among them."""
        return self._load.by_record(self._sites.numbers(indices))

    def code(self) -> list[Any]:
        """Returns what a user wrote that is run to make a batch."""
        return self._load.code()

    def __call__(
        self, indices: Indices, before: Callable[[int], None] | None = None, alter: Alter | None = None
    ) -> Any:
        """Returns the batch of these records."""
        return self._load(self._sites.numbers(indices), before, alter)
