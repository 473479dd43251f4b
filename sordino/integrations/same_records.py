"""Whether two datasets hold the same records, as far as can be seen: one object, views of it, one table, one memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

EVALUATED = "records that were trained on were evaluated, and what comes of it has no noise; evaluate held-out ones"
SCORED = "the training set was scored, and what comes of it has no noise; score held-out records"
"""Why there is no guarantee then."""


def shares_records(one: Any, other: Any) -> bool:
    """Is something of one dataset in the other?

    >>> import torch
    >>> data = TensorDataset(torch.zeros(4, 1))
    >>> shares_records(Subset(data, [0]), data), shares_records(TensorDataset(torch.zeros(4, 1)), data)
    (True, False)
    """
    a, b = _rows(one), _rows(other)
    for root, rows in a.items():
        mine = b.get(root)
        if root in b and (rows is None or mine is None or rows & mine):
            return True
    return False


def _rows(dataset: Any) -> dict[int, frozenset[int] | None]:
    """What a dataset is made of, and which rows of it; None for all, or where that is not known."""
    chosen: list[int] | None = None
    while isinstance(dataset, Subset):  # a part of a part: by its places in the whole
        places = [int(i) for i in dataset.indices]
        chosen = places if chosen is None else [places[i] for i in chosen]
        dataset = dataset.dataset
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


def memory_of(x: Any) -> tuple[int, int]:
    """Where a table lies: first and last address."""
    low, high = np.lib.array_utils.byte_bounds(np.asarray(x))
    return int(low), int(high)


def overlap(one: tuple[int, int], other: tuple[int, int]) -> bool:
    """Have two of them something in common?"""
    return one[0] < other[1] and other[0] < one[1]
