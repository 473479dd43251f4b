"""Same records: whether records that are evaluated were trained on, as far as can be seen.

By identity: one object, views of it, one table, one memory, the same objects in another list. And by content where
records are rows of numbers, because a split, a pipeline or a data frame makes copies (`equal_rows`).

Privacy: what is evaluated without noise on records that were trained on is a release that no ledger knows. A copy of
records that are not rows of numbers, another process, and a loop of the user's own are not seen.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from sordino.integrations.equal_rows import RowDigests, table_of

EVALUATED = "records that were trained on were evaluated, and what comes of it has no noise; evaluate held-out ones"
SCORED = "the training set was scored, and what comes of it has no noise; score held-out records"
"""Why there is no guarantee then."""

_OTHERS = 4
"""Held-out datasets that are remembered as such: a loop evaluates the same few again and again."""


class _Known:
    """Stands for records with the same content, wherever they lie: a ledger notes it in place of a table."""


_known: deque[tuple[RowDigests, _Known]] = deque(maxlen=32)
"""Tables that were fitted on in this process, as digests."""


def stand_in_for(table: Any) -> Any:
    """Returns an object that is the same for tables with the same rows, so that fits on copies count as on one dataset.

    Another ledger that used the object is then named in the claim, as for a dataset that is used twice.
    """
    rows = RowDigests.of(table)
    if rows is None or not any(len(form.once) for form in rows.forms):
        return table if table is not None else _Known()
    for known, stands_in in _known:
        if known.hold(table):
            return stands_in
    made = _Known()
    _known.append((rows, made))
    return made


def shares_records(one: Any, other: Any) -> bool:
    """Returns whether something of one dataset is in the other.

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
        self._table: RowDigests | None = None
        self._others: deque[Any] = deque(maxlen=_OTHERS)

    def shares(self, dataset: Any) -> bool:
        """Returns whether something of the training set is in this dataset."""
        if any(other is dataset for other in self._others):
            return False
        found = self._same(dataset) or self._alike(dataset)
        if not found:
            self._others.append(dataset)
        return found

    def _same(self, dataset: Any) -> bool:
        """Returns whether the datasets share memory or objects, at the same rows as far as these are known."""
        for root, rows in _rows(dataset).items():
            mine = self._made.get(root)
            if root in self._made and (rows is None or mine is None or rows & mine):
                return True
        return False

    def _alike(self, dataset: Any) -> bool:
        """Returns whether the datasets have rows of equal content."""
        if not self._looked:
            self._table, self._looked = RowDigests.of(table_of(self._dataset)), True
        return self._table is not None and self._table.hold(table_of(dataset))


def _rows(dataset: Any) -> dict[int, frozenset[int] | None]:
    """Returns what a dataset is made of, and which rows of it; None for all, or where that is not known."""
    chosen: list[int] | None = None
    # Unwrap subsets first: whatever they are subsets of is what is shared.
    while isinstance(dataset, Subset):  # a part of a part: by its places in the whole
        places = [int(i) for i in dataset.indices]
        chosen = places if chosen is None else [places[i] for i in chosen]
        dataset = dataset.dataset
    # Records in lists are known by their own identity.
    if isinstance(dataset, list | tuple) and dataset and not isinstance(dataset[0], int | float | str):
        kept = dataset if chosen is None else [dataset[i] for i in chosen]
        return {id(record): None for record in kept}
    if chosen is not None:
        if isinstance(dataset, TensorDataset):
            return _addresses(dataset.tensors[0], chosen)
        return {root: frozenset(chosen) if rows is None else None for root, rows in _rows(dataset).items()}
    # Tensors are known by their memory, Hugging Face's datasets by their table.
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
    """Returns the memory behind a tensor, and where in it its rows begin."""
    first, step = int(tensor.storage_offset()), tensor.stride(0)
    rows = range(len(tensor)) if chosen is None else chosen
    return {tensor.untyped_storage().data_ptr(): frozenset(first + i * step for i in rows)}


@dataclass(frozen=True)
class Trained:
    """A table that was trained on, to be known again: its memory, which may be another's by now, and its rows."""

    memory: tuple[int, int] | None
    rows: RowDigests | None

    @classmethod
    def on(cls, table: Any) -> Trained:
        """Returns what is needed to know the table of `fit` again; the table itself is not kept."""
        found = table_of(table) if not isinstance(table, list | tuple) else table
        return cls(_memory(found), RowDigests.of(found))

    def hold(self, table: Any) -> bool:
        """Returns whether a table, or a part of it, was trained on."""
        found = table_of(table) if not isinstance(table, list | tuple) else table
        memory = _memory(found)
        same = memory and self.memory and memory[0] < self.memory[1] and self.memory[0] < memory[1]
        return self.rows is not None and self.rows.hold(found, one=bool(same))


def _memory(table: Any) -> tuple[int, int] | None:
    """Returns the first and the last address of an array; None for what is no array."""
    bare = table.detach().numpy() if isinstance(table, Tensor) and table.is_cpu else table
    if not isinstance(bare, np.ndarray):
        return None
    low, high = np.lib.array_utils.byte_bounds(bare)
    return int(low), int(high)
