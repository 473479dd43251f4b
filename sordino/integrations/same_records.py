"""Whether records that are evaluated were trained on, as far as can be seen.

By identity: one object, views of it, one table, one memory, the same objects in another list. And by content where
records are rows of numbers, because a split, a pipeline or a data frame makes copies (`Rows`).

Privacy: what is evaluated without noise on records that were trained on is a release that no ledger knows. A copy of
records that are not rows of numbers, another process, and a loop of the user's own are not seen.
"""

from __future__ import annotations

import math
import secrets
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

EVALUATED = "records that were trained on were evaluated, and what comes of it has no noise; evaluate held-out ones"
SCORED = "the training set was scored, and what comes of it has no noise; score held-out records"
"""Why there is no guarantee then."""

_BY_CHANCE, _ALARM = 0.37, 1e-6
"""Of independent records at most 1/e are expected to equal a row that the training set has once: a cell that holds
λ records in expectation holds exactly one with probability λe^−λ ≤ 1/e. More than that, by Hoeffding's bound at one
false alarm in a million, is no accident."""
_BLOCK = 4096
_OTHERS = 4
"""Held-out datasets that are remembered as such: a loop evaluates the same few again and again."""
_TEXTS = 50_000
"""Texts that are read through to compare them; more would take more than a second."""
_salt = secrets.randbits(128)
"""Of this process: nobody can search for a row by its digest elsewhere."""


@dataclass(frozen=True)
class Rows:
    """The rows of a table that it has once, as salted digests: enough to know them again, too little to read them."""

    once: NDArray[np.uint64]

    @classmethod
    def of(cls, table: Any) -> Rows | None:
        """Of a table of numbers; None where it is none."""
        found = digests(table)
        if found is None:
            return None
        values, counts = np.unique(found, return_counts=True)
        return cls(values[counts == 1])

    def hold(self, table: Any, *, one: bool = False) -> bool:
        """Are more of its rows here than chance explains? Of a view of the same memory, which may hold others, `one`.

        >>> x = np.random.default_rng(0).random((300, 4))
        >>> trained = Rows.of(x[:200])
        >>> trained.hold(x[200:]), trained.hold(x[:50].tolist()), trained.hold(x)
        (False, True, True)
        """
        found = digests(table)
        if found is None or not len(found):
            return False
        share = float(np.isin(found, self.once).mean())
        if one:
            return share > 0
        return share > _BY_CHANCE + math.sqrt(-math.log(_ALARM) / (2 * len(found)))


def digests(table: Any) -> NDArray[np.uint64] | None:
    """One number per row, equal for equal rows; None for what is no table of numbers."""
    if isinstance(table, np.ndarray) and table.dtype == np.uint64 and table.ndim == 1:
        return table  # they are digests
    bare = table.detach().cpu().numpy() if isinstance(table, Tensor) else table
    try:
        array = np.asarray(bare)
        if array.ndim < 2 or array.dtype.kind not in "biuf":
            return None
    except (TypeError, ValueError):  # rows of different lengths, or no numbers
        return None
    wide = array.reshape(len(array), -1)
    weights = np.random.default_rng(_salt).integers(0, 2**64, size=wide.shape[1], dtype=np.uint64)
    found = np.empty(len(wide), dtype=np.uint64)
    for start in range(0, len(wide), _BLOCK):
        block = np.ascontiguousarray(wide[start : start + _BLOCK], dtype=np.float32) + np.float32(0.0)  # −0.0 is 0.0
        found[start : start + _BLOCK] = (block.view(np.uint32).astype(np.uint64) * weights).sum(axis=1, dtype=np.uint64)
    return found


def shares_records(one: Any, other: Any) -> bool:
    """Is something of one dataset in the other?

    >>> import torch
    >>> data = TensorDataset(torch.zeros(4, 1))
    >>> shares_records(Subset(data, [0]), data), shares_records(TensorDataset(torch.zeros(4, 1)), data)
    (True, False)
    """
    return TrainedOn(other).shares(one)


class TrainedOn:
    """A dataset that was trained on; what it is made of is looked at once, however often something is evaluated."""

    def __init__(self, dataset: Any) -> None:
        self._made = _rows(dataset)
        self._dataset, self._looked = dataset, False  # held, so that what it is made of stays where it is
        self._table: Rows | None = None
        self._others: deque[Any] = deque(maxlen=_OTHERS)

    def shares(self, dataset: Any) -> bool:
        """Is something of it in this one?"""
        if any(other is dataset for other in self._others):
            return False
        found = self._same(dataset) or self._alike(dataset)
        if not found:
            self._others.append(dataset)
        return found

    def _same(self, dataset: Any) -> bool:
        for root, rows in _rows(dataset).items():
            mine = self._made.get(root)
            if root in self._made and (rows is None or mine is None or rows & mine):
                return True
        return False

    def _alike(self, dataset: Any) -> bool:
        if not self._looked:
            self._table, self._looked = Rows.of(table_of(self._dataset)), True
        return self._table is not None and self._table.hold(table_of(dataset))


def _texts(dataset: Any) -> NDArray[np.uint64] | None:
    """Digests of tokenised records, which `map` and other tools copy; None for what is none, or too long to read."""
    try:
        if not 0 < len(dataset) <= _TEXTS or not isinstance(dataset[0], Mapping):
            return None
        tokens = (np.asarray(dataset[i]["input_ids"], dtype=np.int64).tobytes() for i in range(len(dataset)))
        return np.fromiter((hash((_salt, text)) % 2**64 for text in tokens), np.uint64)
    except (TypeError, KeyError, ValueError, IndexError):
        return None


def table_of(dataset: Any) -> Any:
    """A dataset's rows of numbers: its first tensor, skorch's X, the table itself, or digests of its texts; else None."""
    if isinstance(dataset, Subset):
        whole = table_of(dataset.dataset)
        return None if whole is None else whole[np.asarray(dataset.indices, dtype=np.int64)]
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[0]
    texts = None if isinstance(dataset, np.ndarray | Tensor) else _texts(dataset)
    if texts is not None:
        return texts
    inner = getattr(dataset, "X", None) if not isinstance(dataset, np.ndarray | Tensor) else None
    found = dataset if inner is None else inner
    return found if isinstance(found, np.ndarray | Tensor) or hasattr(found, "to_numpy") else None


def _rows(dataset: Any) -> dict[int, frozenset[int] | None]:
    """What a dataset is made of, and which rows of it; None for all, or where that is not known."""
    chosen: list[int] | None = None
    while isinstance(dataset, Subset):  # a part of a part: by its places in the whole
        places = [int(i) for i in dataset.indices]
        chosen = places if chosen is None else [places[i] for i in chosen]
        dataset = dataset.dataset
    if isinstance(dataset, list | tuple) and dataset and not isinstance(dataset[0], int | float | str):
        kept = dataset if chosen is None else [dataset[i] for i in chosen]
        return {id(record): None for record in kept}
    if chosen is not None:
        if isinstance(dataset, TensorDataset):
            return _addresses(dataset.tensors[0], chosen)
        return {root: frozenset(chosen) if rows is None else None for root, rows in _rows(dataset).items()}
    if isinstance(dataset, ConcatDataset):
        return {root: None for inner in dataset.datasets for root in _rows(inner)}
    if isinstance(dataset, TensorDataset):
        return _addresses(dataset.tensors[0])
    table = getattr(dataset, "data", None)
    if type(dataset).__module__.startswith("datasets.") and table is not None:
        selected = getattr(dataset, "_indices", None)
        rows = None if selected is None else frozenset(selected.column(0).to_pylist())
        return {id(getattr(table, "table", table)): rows}
    return {id(dataset): None}


def _addresses(tensor: Tensor, chosen: list[int] | None = None) -> dict[int, frozenset[int] | None]:
    """The memory behind a tensor, and where in it its rows begin."""
    first, step = int(tensor.storage_offset()), tensor.stride(0)
    rows = range(len(tensor)) if chosen is None else chosen
    return {tensor.untyped_storage().data_ptr(): frozenset(first + i * step for i in rows)}


@dataclass(frozen=True)
class Trained:
    """A table that was trained on, to be known again: its memory, which may be another's by now, and its rows."""

    memory: tuple[int, int] | None
    rows: Rows | None

    @classmethod
    def on(cls, table: Any) -> Trained:
        """Of what `fit` was given; the table itself is not kept."""
        found = table_of(table) if not isinstance(table, list | tuple) else table
        return cls(_memory(found), Rows.of(found))

    def hold(self, table: Any) -> bool:
        """Was it trained on, or a part of it?"""
        found = table_of(table) if not isinstance(table, list | tuple) else table
        memory = _memory(found)
        same = memory and self.memory and memory[0] < self.memory[1] and self.memory[0] < memory[1]
        return self.rows is not None and self.rows.hold(found, one=bool(same))


def _memory(table: Any) -> tuple[int, int] | None:
    """Where an array lies: first and last address."""
    bare = table.detach().numpy() if isinstance(table, Tensor) and table.is_cpu else table
    if not isinstance(bare, np.ndarray):
        return None
    low, high = np.lib.array_utils.byte_bounds(bare)
    return int(low), int(high)
