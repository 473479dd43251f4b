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

EVALUATED = "records that were trained on were evaluated.\nWhat comes of it has no noise.\nEvaluate held-out records."
SCORED = "the training set was scored.\nWhat comes of it has no noise.\nScore held-out records."
"""Why there is no guarantee then."""

_OTHERS = 4
"""Held-out datasets that are remembered as such: a loop evaluates the same few again and again."""


class _StandIn:
    """Stands for records with the same content, wherever they lie: a ledger notes it in place of a table."""


_fitted_tables: deque[tuple[RowDigests, _StandIn]] = deque(maxlen=32)
"""Tables that were fitted on in this process, as digests."""


def stand_in_for(table: Any) -> Any:
    """Returns an object that is the same for tables with the same records, so that fits on copies count as on one
    dataset.

    Another ledger that used the object is then named in the claim, as for a dataset that is used twice.
    """
    rows = RowDigests.of(table)
    # Without a row that is there once nothing can be recognised, and the table stands for itself.
    if rows is None or not any(len(form.once) for form in rows.forms):
        return table if table is not None else _StandIn()
    # A table that shares rows with an earlier one gets its stand-in, so that a ledger adds up both fits.
    for known, stands_in in _fitted_tables:
        if known.has_rows_of(table):
            return stands_in
    made = _StandIn()
    _fitted_tables.append((rows, made))
    return made


def shares_records(one: Any, other: Any) -> bool:
    """Returns whether one dataset has some of the same records as the other.

    >>> import torch
    >>> data = TensorDataset(torch.zeros(4, 1))
    >>> shares_records(Subset(data, [0]), data), shares_records(TensorDataset(torch.zeros(4, 1)), data)
    (True, False)
    """
    return TrainedOn(other).shares_records_with(one)


class TrainedOn:
    """A dataset that was trained on; what it is made of is looked at once, however often something is evaluated."""

    def __init__(self, dataset: Any) -> None:
        self._rows_by_source = _rows_by_source(dataset)
        self._dataset, self._table_was_read = dataset, False  # held, so that what it is made of stays where it is
        self._table: RowDigests | None = None
        self._held_out: deque[Any] = deque(maxlen=_OTHERS)

    def shares_records_with(self, dataset: Any) -> bool:
        """Returns whether some records of the training set are the same as records of another dataset."""
        if any(other is dataset for other in self._held_out):
            return False
        # Memory first: that is quick, and contents need to be compared for copies only.
        shared = self._shares_memory(dataset) or self._shares_content(dataset)
        if not shared:
            self._held_out.append(dataset)
        return shared

    def _shares_memory(self, dataset: Any) -> bool:
        """Returns whether records are the same because two datasets share memory or objects, at the same rows as far as
        rows are known.
        """
        for root, rows in _rows_by_source(dataset).items():
            mine = self._rows_by_source.get(root)
            if root in self._rows_by_source and (rows is None or mine is None or rows & mine):
                return True
        return False

    def _shares_content(self, dataset: Any) -> bool:
        """Returns whether records are the same because the datasets have rows of equal content."""
        if not self._table_was_read:
            self._table, self._table_was_read = RowDigests.of(table_of(self._dataset)), True
        return self._table is not None and self._table.has_rows_of(table_of(dataset))


def _rows_by_source(dataset: Any) -> dict[int, frozenset[int] | None]:
    """Returns the sources of a dataset's records, by which the same records are known, and which rows of each; None for
    all, or where that is not known.
    """
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
            return _row_addresses(dataset.tensors[0], chosen)
        return {root: frozenset(chosen) if rows is None else None for root, rows in _rows_by_source(dataset).items()}
    # Tensors are known by their memory, Hugging Face's datasets by their table.
    if isinstance(dataset, ConcatDataset):
        return {root: None for inner in dataset.datasets for root in _rows_by_source(inner)}
    if isinstance(dataset, TensorDataset):
        return _row_addresses(dataset.tensors[0])
    table = getattr(dataset, "data", None)
    if type(dataset).__module__.startswith("datasets.") and table is not None:
        selected = getattr(dataset, "_indices", None)
        rows = None if selected is None else frozenset(selected.column(0).to_pylist())
        return {id(getattr(table, "table", table)): rows}
    return {id(dataset): None}


def _row_addresses(tensor: Tensor, chosen: list[int] | None = None) -> dict[int, frozenset[int] | None]:
    """Returns the memory behind a tensor of records, and where in the memory its rows begin, so that the same records
    are known.
    """
    # A view has the storage of the whole; a row is known by the element of the storage at which it begins.
    first, step = int(tensor.storage_offset()), tensor.stride(0)
    rows = range(len(tensor)) if chosen is None else chosen
    return {tensor.untyped_storage().data_ptr(): frozenset(first + i * step for i in rows)}


@dataclass(frozen=True)
class TrainedTable:
    """A table that was trained on, to be known again: its memory, which may be another's by now, and its rows."""

    memory: tuple[int, int] | None
    rows: RowDigests | None

    @classmethod
    def remember(cls, table: Any) -> TrainedTable:
        """Returns what is needed to know the table of `fit` again; the table itself is not kept."""
        bare_table = table_of(table) if not isinstance(table, list | tuple) else table
        return cls(_memory_bounds(bare_table), RowDigests.of(bare_table))

    def shares_rows_with(self, table: Any) -> bool:
        """Returns whether a table, or a part of it, has the same records as the table that was trained on."""
        bare_table = table_of(table) if not isinstance(table, list | tuple) else table
        memory = _memory_bounds(bare_table)
        same = memory and self.memory and memory[0] < self.memory[1] and self.memory[0] < memory[1]
        return self.rows is not None and self.rows.has_rows_of(bare_table, one_is_enough=bool(same))


def _memory_bounds(table: Any) -> tuple[int, int] | None:
    """Returns the first and the last address of an array, to tell whether two tables have the same records; None for
    what is no array.
    """
    bare = table.detach().numpy() if isinstance(table, Tensor) and table.is_cpu else table
    if not isinstance(bare, np.ndarray):
        return None
    low, high = np.lib.array_utils.byte_bounds(bare)
    return int(low), int(high)
