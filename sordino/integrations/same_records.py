"""Whether two datasets hold the same records, as far as can be seen: one object, views of it, one table, one memory."""

from __future__ import annotations

from typing import Any

from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset


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
        return {root: frozenset(chosen) if rows is None else None for root, rows in _rows(dataset).items()}
    if isinstance(dataset, ConcatDataset):
        return {root: None for inner in dataset.datasets for root in _rows(inner)}
    if isinstance(dataset, TensorDataset):
        return {_memory(dataset.tensors[0]): None}
    table = getattr(dataset, "data", None)
    if type(dataset).__module__.startswith("datasets.") and table is not None:
        selected = getattr(dataset, "_indices", None)
        rows = None if selected is None else frozenset(selected.column(0).to_pylist())
        return {id(getattr(table, "table", table)): rows}
    return {id(dataset): None}


def _memory(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()
