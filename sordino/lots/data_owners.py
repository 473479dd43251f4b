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
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, Dataset

from sordino import validate
from sordino.lots.loading import ROW_LOADERS, Indices, Load, cut_into_batches, find_row_loader
from sordino.refusal import Refusal

if TYPE_CHECKING:
    from sordino.lots.loading import Alter, BatchReader, Loader
    from sordino.lots.shards import ShardWindow


class Sites(Dataset[Any]):
    """The records of all sites, one site after the other, of which some are held here.

    >>> data = Sites([2, 3], {1: ["a", "b", "c"]})
    >>> len(data), data[2], data.to_local_places(np.array([0, 3])).tolist(), data.to_record_numbers(np.array([1])).tolist()
    (5, 'a', [1], [3])
    """

    def __init__(self, lengths: Sequence[int], held: Mapping[int, Any]) -> None:
        # The lengths of all sites are public; every rank needs them to draw the same lots.
        each_length = validate.sequence("lengths", lengths, "the number of records of each site")
        self.lengths = tuple(validate.count("lengths", each) for each in each_length)
        validate.instance("held", held, Mapping, "a mapping from the numbers of the sites held here to their datasets")
        for number in held:
            validate.count("held", number, least=0)
        self.held = dict(sorted(held.items()))
        self.ends = np.cumsum(self.lengths)
        # What is held here must be what the lengths say, or places of records would belong to other sites.
        for number, dataset in self.held.items():
            if number >= len(self.lengths):
                raise ValueError(f"site {number}: there are {len(self.lengths)} of them, counted from 0")
            if len(dataset) != self.lengths[number]:
                raise ValueError(f"site {number} has {len(dataset)} records, and lengths says {self.lengths[number]}")
        if not self.held:
            raise ValueError("held={}: every rank needs a site; give fewer ranks, or cut a site in two")

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> Any:
        # An end is the first number of the next site, which is why the search goes to its right.
        site = int(np.searchsorted(self.ends, index, side="right"))
        return self.entry_of_site(site, self.held)[index - self.first_record_of(site)]

    def entry_of_site(self, site: int, by_site: Mapping[int, Any]) -> Any:
        """Returns the entry of a data owner's site in `by_site`; raises Refusal if this rank does not hold the site."""
        if site not in by_site:
            raise Refusal(
                f"a record of site {site} was asked for on a rank that holds {list(self.held)}.\n"
                "Records stay with their owners.\n"
                "Read each site's records on the rank that holds it."
            )
        return by_site[site]

    def first_record_of(self, site: int) -> int:
        """Returns the number of a site's first record among all records."""
        return int(self.ends[site]) - self.lengths[site]

    @property
    def local_records(self) -> ConcatDataset[Any]:
        """The records that are held here, as one dataset."""
        return ConcatDataset(list(self.held.values()))

    def to_local_places(self, indices: Indices) -> Indices:
        """Returns the places, among the data owners' records held on this rank, of those of `indices` that are held
        here.
        """
        local_places, before = [indices[:0]], 0
        for site in self.held:
            begin = self.first_record_of(site)
            in_site = indices[(indices >= begin) & (indices < self.ends[site])]
            local_places.append(in_site - begin + before)
            before += self.lengths[site]
        return np.concatenate(local_places)

    def to_record_numbers(self, places: Indices) -> Indices:
        """Returns the numbers, among the records of all data owners, of those that stand at these places on this rank."""
        ends = np.cumsum([self.lengths[site] for site in self.held])  # here
        # Within a site the place here and the number among all records differ by a constant.
        offsets = np.array([self.ends[site] for site in self.held]) - ends
        return np.asarray(places + offsets[np.searchsorted(ends, places, side="right")], dtype=np.int64)


def _make_row_loader(sites: Sites) -> Load | None:
    """Returns a function that loads rows of all data owners' sites held here, or None if one of them is not of tensors."""
    by_site = {site: load for site, held in sites.held.items() if (load := find_row_loader(held)) is not None}
    return partial(_load_rows_of_sites, sites, by_site) if len(by_site) == len(sites.held) else None


def _load_rows_of_sites(sites: Sites, by_site: Mapping[int, Load], indices: Indices) -> Any:
    """Returns the rows of a batch from the tensors of the data owner whose site holds them; a batch of a lot is of one
    site.
    """
    # Rows of one site are read at once, in the order in which they were asked for.
    sites_of_rows = np.searchsorted(sites.ends, indices, side="right")
    order = np.argsort(sites_of_rows, kind="stable")
    parts = []
    for some in np.split(order, np.flatnonzero(np.diff(sites_of_rows[order])) + 1):
        site = int(sites_of_rows[some[0]])
        parts.append(sites.entry_of_site(site, by_site)(indices[some] - sites.first_record_of(site)))
    if len(parts) == 1:
        return parts[0]
    # Rows of several sites are put back into the order of the indices.
    inverse_order = torch.from_numpy(np.argsort(order))
    return tuple(torch.cat(columns)[inverse_order] for columns in zip(*parts, strict=True))


ROW_LOADERS[Sites] = _make_row_loader


@dataclass(frozen=True, eq=False)
class CuttingBySite:
    """Cuts a lot at the borders of sites; a batch belongs to the rank that computes its site."""

    ends: Indices  # of the sites
    owners: tuple[int, ...]  # of each site, a rank
    rank: int
    size: int

    def cut(self, indices: Indices, physical_batch: int, records: int | None) -> list[Indices]:
        """Returns the batches of a lot, cut by the data owners' sites, and within a site by the records' numbers."""
        sites = np.searchsorted(self.ends, indices, side="right")
        batches: list[Indices] = []
        for site, end in enumerate(self.ends):
            begin = 0 if site == 0 else int(self.ends[site - 1])
            # Counted from the site's own first record, so that its chunks do not depend on the sites before it.
            in_site = indices[sites == site] - begin
            batches += [part + begin for part in cut_into_batches(in_site, physical_batch, int(end) - begin)]
        return batches

    def shares_of_ranks(self, chunks: Sequence[Indices]) -> Sequence[Sequence[int]]:
        """Returns the numbers of the batches of each rank: those of the data owners' sites that it computes."""
        by_rank: list[list[int]] = [[] for _ in range(self.size)]
        for number, part in enumerate(chunks):
            # A batch lies within one site, so its first record tells which one.
            site = int(np.searchsorted(self.ends, part[0], side="right"))
            by_rank[self.owners[site]].append(number)
        return by_rank


def assign_sites(held: Sequence[Sequence[int]], sites: int) -> tuple[int, ...]:
    """Returns which rank computes each data owner's site, of those that hold it: one that computes the fewest so far.

    >>> assign_sites([[0, 1], [1, 2]], 3)
    (0, 1, 1)
    """
    assigned: list[int] = []
    for site in range(sites):
        holders = [rank for rank, each in enumerate(held) if site in each]
        if not holders:
            raise Refusal(
                f"site {site} is held by no rank.\n"
                "Every record must be drawn with its own probability, also those of this site.\n"
                f"Give each of the {sites} sites to one of the ranks."
            )
        # Ties go to the lowest rank: every rank must find the same assignment by itself.
        assigned.append(min(holders, key=lambda rank: (assigned.count(rank), rank)))
    return tuple(assigned)


class LocalRecords:
    """A reader of the records that are held here, numbered from 0: those of some sites, or of some shards of a stream."""

    def __init__(self, load: BatchReader, sites: Sites | ShardWindow) -> None:
        self._load, self._sites = load, sites

    def as_if_unread(self) -> LocalRecords:
        """Returns a reader as if nothing had been read."""
        return LocalRecords(self._load.as_if_unread(), self._sites)

    def to_single_records(self, indices: Indices) -> tuple[Loader, Indices]:
        """Returns the loader of single records of all sites, and the numbers of these among them."""
        return self._load.to_single_records(self._sites.to_record_numbers(indices))

    def list_user_code(self) -> list[Any]:
        """Returns what a user wrote that is run to make a batch."""
        return self._load.list_user_code()

    def __call__(
        self, indices: Indices, before: Callable[[int], None] | None = None, alter: Alter | None = None
    ) -> Any:
        """Returns the batch of these records."""
        return self._load(self._sites.to_record_numbers(indices), before, alter)
