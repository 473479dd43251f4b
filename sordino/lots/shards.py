"""Streams as datasets: records in shards that are opened one after the other, each of them once.

    names = [f"part-{k:03d}.parquet" for k in range(100)]
    data = sd.Shards(names, sizes=[10_000] * 100, load=read_part)                    # read_part(name) gives its records
    for lot in private.draws(data, sd.FixedOrder(batch_size=500), steps=2000): ...   # one pass, in the order of the shards

Only the shards that a lot needs are in memory, `keep` of them at most. With `FixedOrder` a lot is a stretch of the stream,
so a pass opens every shard once, and memory does not grow with the number of shards. An `IterableDataset`, or anything
else that can only be gone through, is cut into shards by `Shards.from_stream`.

Privacy: names and sizes of the shards are public and fixed before the run, so a draw is a list of numbers as with any
dataset, and the claim is that of the sampler: of `FixedOrder`, one release per pass, without amplification, about one
record's contribution replaced by nothing. A shard that does not have the declared number of records is refused, because
then the places of the records that follow would depend on it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import Dataset

from sordino import validate
from sordino.refusal import Refusal

_KEPT = 2
"""Shards in memory by default: a lot may begin in one and end in the next."""


class Shards(Dataset[Any]):
    """The records of a public list of shards, one shard after the other, of which a few are in memory.

    Args:
        names: of the shards, in the order in which they are read; whatever `load` takes.
        sizes: the number of records of each shard. They are public.
        load: `load(name)` gives the records of a shard: a list, a map-style dataset, or an iterable, which is read to its
            end. It must give the same records whenever it is called.
        keep: how many shards are in memory at most.

    Privacy:
        Sizes are public, as the number of records of a dataset is. Use `FixedOrder`: samplers that draw at random work too,
        with their own claim, but open many shards for every lot.

    Examples:
        >>> data = Shards(["a", "b"], sizes=[2, 3], load=lambda name: [name + str(k) for k in range(2 + (name == "b"))])
        >>> len(data), data[1], data[4], data.times_opened
        (5, 'a1', 'b2', 2)

    """

    def __init__(
        self, names: Sequence[Any], sizes: Sequence[int], load: Callable[[Any], Any], *, keep: int = _KEPT
    ) -> None:
        self.names = tuple(validate.sequence("names", names, "the names of the shards"))
        each_size = validate.sequence("sizes", sizes, "the number of records of each shard")
        self.sizes = tuple(validate.count("sizes", size) for size in each_size)
        if len(self.names) != len(self.sizes) or not self.names:
            raise ValueError(f"{len(self.names)} names and {len(self.sizes)} sizes: need one size for each shard")
        if not callable(load):
            raise TypeError("load: must be a function of a shard's name that gives its records")
        self.ends = np.cumsum(self.sizes)
        # Copies of this object share what is open, so that a record is not read again because somebody looks at it.
        self._open_shards = _OpenShards(self.names, self.sizes, load, validate.count("keep", keep))

    @classmethod
    def from_stream(cls, source: Iterable[Any], records: int, shard_size: int, *, keep: int = _KEPT) -> Shards:
        """Returns the first records of a stream, such as an `IterableDataset`, as shards that are read in turn.

        Args:
            source: gives the same records in the same order whenever it is iterated over.
            records: how many records are used. It is public; a stream that ends before is refused.
            shard_size: records that are in memory at once, `keep` times.
            keep: how many shards are in memory at most.

        A shard before the last one that was read starts the stream anew, so draw by `FixedOrder`.

        >>> data = Shards.from_stream(range(10, 20), records=7, shard_size=3)
        >>> len(data), data[0], data[6], data.sizes
        (7, 10, 16, (3, 3, 1))

        """
        if not isinstance(source, Iterable):
            raise TypeError("source: must be a stream of records that can be iterated over")
        records, shard_size = validate.count("records", records), validate.count("shard_size", shard_size)
        sizes = [min(shard_size, records - first) for first in range(0, records, shard_size)]
        return cls(range(len(sizes)), sizes, _StreamCutter(source, sizes), keep=keep)

    @property
    def times_opened(self) -> int:
        """How often a shard was opened so far; in one pass in fixed order, once for each."""
        return self._open_shards.times_opened

    def window_of(self, indices: NDArray[np.int64]) -> ShardWindow | None:
        """Returns the stretch of shards that a lot lies in, or None if they are more than are kept in memory."""
        if not len(indices):
            return None
        low, high = np.searchsorted(self.ends, (indices.min(), indices.max()), side="right").tolist()
        first = int(self.ends[low]) - self.sizes[low]
        return None if high - low >= self._open_shards.keep else ShardWindow(first, int(self.ends[high]) - first)

    def __len__(self) -> int:
        return int(self.ends[-1])

    def __getitem__(self, index: int) -> Any:
        if not 0 <= index < len(self):
            raise IndexError(f"record {index}: there are {len(self)} of them")
        shard = int(np.searchsorted(self.ends, index, side="right"))
        return self._open_shards.read_shard(shard)[index - int(self.ends[shard]) + self.sizes[shard]]

    def __getitems__(self, indices: Sequence[int]) -> list[Any]:
        """Returns several records; each shard is looked up once."""
        places = np.asarray(indices, dtype=np.int64)
        shards = np.searchsorted(self.ends, places, side="right")
        records: list[Any] = [None] * len(places)
        for shard in np.unique(shards).tolist():
            held, first = self._open_shards.read_shard(shard), int(self.ends[shard]) - self.sizes[shard]
            for at in np.flatnonzero(shards == shard).tolist():
                records[at] = held[int(places[at]) - first]
        return records


@dataclass(frozen=True)
class ShardWindow:
    """A stretch of a stream that is in memory: the records of some neighbouring shards."""

    first: int
    count: int

    def to_record_numbers(self, places: NDArray[np.int64]) -> NDArray[np.int64]:
        """Returns the numbers in the stream of the records at these places of the window."""
        return np.asarray(places + self.first, dtype=np.int64)


class _OpenShards:
    """The shards that are in memory, the one used last at the end."""

    def __init__(self, names: Sequence[Any], sizes: Sequence[int], load: Callable[[Any], Any], keep: int) -> None:
        self._names, self._sizes, self._load, self.keep = names, sizes, load, keep
        self._held: OrderedDict[int, Any] = OrderedDict()
        self.times_opened = 0

    def read_shard(self, shard: int) -> Any:
        """Returns the records of a shard, which is opened if it is not in memory; the one used longest ago makes room.

        Raises:
            Refusal: if the shard does not have the declared number of records. How many it has is not said.

        """
        if shard in self._held:
            self._held.move_to_end(shard)
            return self._held[shard]
        # Room is made first, so that no more than `keep` shards are ever in memory.
        while len(self._held) >= self.keep:
            self._held.popitem(last=False)
        records = self._load(self._names[shard])
        self.times_opened += 1
        if not (hasattr(records, "__len__") and hasattr(records, "__getitem__")):
            records = list(islice(records, self._sizes[shard] + 1))
        if len(records) != self._sizes[shard]:
            raise Refusal(
                f"shard {shard} does not have the {self._sizes[shard]} records that sizes says.\n"
                "The places of all records after it would depend on it.\n"
                "Give the sizes as they are, or leave out records until every shard has its public size."
            )
        self._held[shard] = records
        return records


class _StreamCutter:
    """Cuts a stream into shards, which it gives by their numbers."""

    def __init__(self, source: Iterable[Any], sizes: Sequence[int]) -> None:
        self._source, self._sizes = source, sizes
        self._stream: Iterator[Any] | None = None
        self._next_shard = 0

    def __getstate__(self) -> dict[str, Any]:
        """Returns the cutter without its place in the stream: a worker process begins anew."""
        return {**self.__dict__, "_stream": None, "_next_shard": 0}

    def __call__(self, shard: int) -> list[Any]:
        """Returns the records of a shard, going on where the stream stands, or from its beginning if that is past."""
        if self._stream is None or shard < self._next_shard:
            self._stream, self._next_shard = iter(self._source), 0
        while self._next_shard < shard:  # shards in between are passed over
            for _ in islice(self._stream, self._sizes[self._next_shard]):
                pass
            self._next_shard += 1
        self._next_shard = shard + 1
        return list(islice(self._stream, self._sizes[shard]))
