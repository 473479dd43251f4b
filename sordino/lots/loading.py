"""Cuts a lot into batches and loads them by index: tensor datasets by rows, others through collate.

A lot is cut into physical batches, each of which is computed by one rank. The cuts follow from public numbers, never from
the number of ranks: the sums of the batches are rounded one by one, and must be the same whoever makes them.

With workers, the batches of coming lots are prefetched; a lot that is abandoned half-way leaves batches behind, which are
skipped. A lot that is gone through a second time is loaded again in this process.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from types import FunctionType
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from sordino.lots.collate import join_records
from sordino.per_sample.batch_structure import to_plain_containers
from sordino.refusal import Refusal
from sordino.sampling.sampler import Draw

Indices = NDArray[np.int64]

Load = Callable[[Indices], Any]
Alter = Callable[[list[Any]], list[Any]]
"""A function from the records that were read to those that collate is given instead."""

STREAM_GIVEN = """a stream was given ({kind}), whose records cannot be drawn by number.
Without a public number of records, and a place for each, nothing is known of who is in a lot.
Cut it into shards, and train on it in one pass, by draws(data, sd.FixedOrder(batch_size=…), …), with
data = sd.Shards.from_stream(stream, records=…, shard_size=…), or sd.Shards(names, sizes, load) for files."""


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
    """Cuts a lot's indices into chunks for loading, batches of at most `physical_batch` records; none for an empty lot.

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
    """Yields the ascending indices of [first, last), cut by halves into chunks for loading that fit into a batch."""
    if len(indices) <= physical_batch:
        if len(indices):
            yield indices
        return
    middle = (first + last) // 2
    cut = int(np.searchsorted(indices, middle))
    yield from _cut_by_halves(indices[:cut], first, middle, physical_batch)
    yield from _cut_by_halves(indices[cut:], middle, last, physical_batch)


@runtime_checkable
class MapStyle(Protocol):
    """A dataset with a length and records by index: torch's own, those of other libraries, and plain lists."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int, /) -> Any: ...


def count_records(dataset: Any) -> int:
    """Returns the number of records of a map-style dataset, for loading batches by index; raises Refusal for anything
    else.
    """
    # A DataLoader draws by itself, and how it does so has no proof.
    if isinstance(dataset, DataLoader):
        raise Refusal("a DataLoader was given.\nThe sampler and draws() make the batches.\nGive the dataset itself.")
    if isinstance(dataset, IterableDataset) or (hasattr(dataset, "__iter__") and not hasattr(dataset, "__len__")):
        raise Refusal(STREAM_GIVEN.format(kind=type(dataset).__name__))
    by_index = isinstance(dataset, MapStyle) and not isinstance(dataset, Tensor | tuple | Mapping | str)
    if not by_index:
        raise Refusal(
            f"a {type(dataset).__name__} was given, whose records cannot be drawn by index.\n"
            "A sampler chooses records by their number.\n"
            "Give a map-style dataset; wrap tensors in torch.utils.data.TensorDataset."
        )
    # The number is asked only once the dataset is known to have records by index.
    n = len(dataset)
    if n == 0:
        raise Refusal("the dataset has no records.\nNobody could be drawn.\nGive a dataset of at least one record.")
    return n


class BatchReader(Protocol):
    """A reader: turns indices into a batch of records or of units."""

    def as_if_unread(self) -> BatchReader:
        """Returns a reader as if nothing had been read."""
        ...

    def to_single_records(self, indices: Indices) -> tuple[Loader, Indices]:
        """Returns the loader of single records, and which of them these indices stand for."""
        ...

    def list_user_code(self) -> list[Any]:
        """Returns what a user wrote that is run to make a batch: the dataset and collate."""
        ...

    def __call__(
        self, indices: Indices, before: Callable[[int], None] | None = None, alter: Alter | None = None
    ) -> Any:
        """Returns the batch; `alter` changes the records that were read before they are joined."""
        ...


class Loader:
    """Turns indices into a batch: of a tensor dataset by indexing, of others record by record and through collate."""

    def __init__(
        self, dataset: Any, collate: Callable[[list[Any]], Any] | None, *, repeats_are_charged: bool = False
    ) -> None:
        """Prepares to read; `repeats_are_charged`: records that are there several times are charged as a group."""
        self.repeats_are_charged = repeats_are_charged
        self._dataset = dataset
        self._collate = collate
        self._before_reading: Loader | None = None
        self._tensors = find_row_loader(dataset) if collate is None else None
        self._join = join_records if collate is None else collate
        self._read_many = getattr(dataset, "__getitems__", None)

    @property
    def dataset(self) -> Any:
        """The dataset that records are read from."""
        return self._dataset

    @property
    def collate(self) -> Callable[[list[Any]], Any] | None:
        """The user's function that makes a batch of records, if there is one."""
        return self._collate

    def to_single_records(self, indices: Indices) -> tuple[Loader, Indices]:
        """Returns itself and the indices, which are those of records already."""
        return self, indices

    @property
    def is_by_indexing(self) -> bool:
        """Whether batches are rows of tensors, untouched by anyone's code."""
        return self._tensors is not None

    def remember_unread(self) -> None:
        """Remembers dataset and collate as they are before the first record is read."""
        if self._tensors is None:
            self._before_reading = Loader(_copy_without_data(self._dataset), _copy_without_data(self._collate))

    def as_if_unread(self) -> Loader:
        """Returns a loader of dataset and collate that loads as if nothing had been read; itself where they cannot be
        copied.
        """
        if self._before_reading is None:
            return self
        return Loader(
            _copy_without_data(self._before_reading._dataset), _copy_without_data(self._before_reading._collate)
        )

    def read_record(self, index: int) -> Any:
        """Returns one record as the dataset gives it, before collate."""
        return self._dataset[index]

    def list_user_code(self) -> list[Any]:
        """Returns the dataset and collate; nothing where batches are rows of tensors."""
        return [] if self._tensors is not None else [self._dataset, self._collate]

    def __call__(
        self, indices: Indices, before: Callable[[int], None] | None = None, alter: Alter | None = None
    ) -> Any:
        """Returns the batch of these records.

        `before(k)` is called before the record at place k is read, and `before(-1)` before collate: to seed generators.
        `alter` is given the records that were read, and returns those that are joined: for tests with records that the
        dataset does not hold.
        """
        # Rows of tensors are indexed, and no code of the user runs.
        if self._tensors is not None:
            batch = self._tensors(indices)
            if alter is None:
                return batch
            return tuple(join_records(alter([tuple(column[k] for column in batch) for k in range(len(indices))])))
        # Other datasets are read all at once where they can be, or record by record.
        rows = indices.tolist()
        if self._read_many is not None:
            records = self._read_many(rows)
        elif before is None:
            records = [self._dataset[i] for i in rows]
        else:
            records = []
            for k, i in enumerate(rows):
                before(k)
                records.append(self._dataset[i])
        if before is not None:
            before(-1)
        return to_plain_containers(self._join(records if alter is None else alter(list(records))))


def _copy_without_data(thing: Any) -> Any:
    """Returns a copy, for loading anew, with its own attributes and its own plain containers; the data in them are
    shared.

    What a dataset learns while it is read (a mean, a table of labels) is then learnt by the copy alone.
    """
    if getattr(thing, "__dict__", None) is None or isinstance(thing, FunctionType | type):
        return thing
    try:
        # A shallow copy shares the data but not what is learnt about them.
        copied = copy.copy(thing)
        for name, value in vars(copied).items():
            if type(value) in (dict, list, set):
                setattr(copied, name, copy.copy(value))
            elif isinstance(value, Dataset):
                setattr(copied, name, _copy_without_data(value))
    except Exception:  # a stranger's class may forbid it
        return thing
    return copied


def find_row_loader(dataset: Any) -> Load | None:
    """Returns a function for loading batches by indexing, if the dataset consists of tensors; otherwise None.

    Tensors are indexed at once; the result is the same as collating the records one by one, and much faster.
    """
    # Exact types only: a subclass may run code of its own for every record.
    make_loader = ROW_LOADERS.get(type(dataset))
    return None if make_loader is None else make_loader(dataset)


def _load_tensor_rows(dataset: TensorDataset) -> Load:
    columns = dataset.tensors
    return lambda indices: _select_rows(columns, torch.from_numpy(indices))


def _load_rows_of_subset(dataset: Subset[Any]) -> Load | None:
    """Returns a function that loads rows of the dataset inside a subset, or None if that does not consist of tensors."""
    inner = find_row_loader(dataset.dataset)
    if inner is None:
        return None
    chosen = np.asarray(dataset.indices, dtype=np.int64)
    return lambda indices: inner(chosen[indices])


ROW_LOADERS: dict[type, Callable[[Any], Load | None]] = {
    TensorDataset: _load_tensor_rows,
    Subset: _load_rows_of_subset,
}
"""What makes the function that loads rows, by the exact type of a dataset; `data_owners` adds its own datasets."""


def _select_rows(columns: tuple[Tensor, ...], indices: Tensor) -> tuple[Tensor, ...]:
    """Returns copies of these rows; index_select copies whole rows, at a fifth of the price of indexing."""
    return tuple([c.index_select(0, indices if c.is_cpu else indices.to(c.device)) for c in columns])


class LotBatches:
    """The batches of one lot, or a rank's share of them.

    Each call goes through them from the first batch; only the first call can use what was prefetched.
    """

    def __init__(
        self,
        indices: Indices,
        physical_batch: int,
        load: Load,
        records: int | None = None,
        prefetched: Callable[[int], Any] | None = None,
        cutting: LotCutting = ONE_PROCESS,
    ) -> None:
        """Cuts the lot by `cutting` and keeps the batches that are loaded by this rank."""
        # Every rank cuts the lot alike and takes its share, so that all ranks together load every batch once.
        parts = cutting.cut(indices, physical_batch, records)
        shares = cutting.shares_of_ranks(parts)
        self.chunks, self.numbers = len(parts), shares[cutting.rank]
        self.most_chunks = max(map(len, shares))  # of any rank
        self._parts, self.most = [parts[number] for number in self.numbers], physical_batch
        self._load = load
        self._prefetched = prefetched

    def __call__(self) -> Iterator[Any]:
        """Yields the batches."""
        prefetched, self._prefetched = self._prefetched, None
        for number, part in zip(self.numbers, self._parts, strict=True):
            yield self._load(part) if prefetched is None else prefetched(number)


class Prefetch:
    """Worker processes that load the batches of coming lots in order."""

    def __init__(
        self,
        dataset: Any,
        draws: Callable[[], Iterator[Draw]],
        physical_batch: int,
        workers: int,
        collate: Callable[[list[Any]], Any] | None,
        seed: int,
        cutting: LotCutting = ONE_PROCESS,
    ) -> None:
        # The workers run ahead of the loop, so the draws must not depend on the model.
        n = count_records(dataset)

        def local_parts(draw: Draw) -> Iterator[tuple[int, Indices]]:
            batches = cutting.cut(draw.indices, physical_batch, n)
            return ((number, batches[number]) for number in cutting.shares_of_ranks(batches)[cutting.rank])

        # The draws are made twice, from the same stream: once for the keys of the batches, once for their records.
        self._keys = ((k, number) for k, draw in enumerate(draws()) for number, _ in local_parts(draw))
        batches = (part.tolist() for draw in draws() for _, part in local_parts(draw))
        generator = torch.Generator().manual_seed(seed)
        self._loader = DataLoader(
            dataset,
            batch_sampler=_IndexBatches(batches),
            num_workers=workers,
            collate_fn=join_records if collate is None else collate,
            generator=generator,
        )
        self._batches: Iterator[Any] | None = None

    def batches_of_lot(self, lot: int) -> Callable[[int], Any]:
        """Returns a function from the number of a batch to the batch, for one lot."""
        return partial(self.take_batch, lot)

    def take_batch(self, lot: int, chunk: int) -> Any:
        """Returns one batch of one lot from those whose loading began ahead; batches before it, left by abandoned lots,
        are thrown away.
        """
        if self._batches is None:
            self._batches = iter(self._loader)
        while True:
            key, batch = next(self._keys), next(self._batches)
            if key == (lot, chunk):
                return to_plain_containers(batch)


class _IndexBatches:
    """Wraps lists of indices as DataLoader wants them."""

    def __init__(self, batches: Iterator[list[int]]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[list[int]]:
        return self._batches
