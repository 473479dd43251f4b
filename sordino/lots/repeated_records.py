"""How often one record is in a dataset: by repeated indices, by a dataset that is joined to itself, by rows of one memory.

A guarantee is about one record of the dataset object. A record that is in it m times can move a sum m times as far, so what
is done to such a dataset is charged as seen by m records that come and go together.

What is seen: `Subset` and `ConcatDataset` in any nesting, tensors that share rows of one storage, one object several times
in a list, and such things inside a wrapper of the same length. What is not: equal values in different memory.

Privacy: group privacy, event by event: the coins of the m copies are independent, so m records under Poisson sampling are
what `Group` is about. In a pass of disjoint batches the copies meet several of them, and there is no theorem here: refused.
"""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

from sordino.events import Event, Group
from sordino.refusal import Refusal
from sordino.sampling.sampler import Draw, Sampler

Rows = NDArray[np.int64]

_VALUES = (int, float, complex, str, bytes, bool, type(None), torch.dtype)
"""Python may keep one object for equal values of these: they are different records."""


def most_copies(dataset: Any, n: int) -> int:
    """How often the record is in the dataset that is in it most often.

    >>> most_copies(Subset(TensorDataset(torch.rand(5, 2)), [0, 1, 1, 4]), 4)
    2
    """
    if not _joined(dataset):
        return 1
    roots: dict[Hashable, int] = {}
    root, row = _origins(dataset, np.arange(n, dtype=np.int64), roots)
    order = np.lexsort((row, root))
    new = np.flatnonzero((np.diff(root[order]) != 0) | (np.diff(row[order]) != 0)) + 1
    return int(np.diff(np.concatenate([[0], new, [n]])).max())


def grouped(draw: Draw, copies: int, sampler: Sampler) -> Draw:
    """The draw, charged as what that many records together see of it."""
    if copies == 1:
        return draw
    if draw.cover is not None or sampler.size_is_public:
        raise Refusal(
            f"a record is {copies} times in the dataset, and {type(sampler).__name__} has no theorem for that: give every "
            "record once (unique indices, no dataset joined to itself), or draw with Poisson, which charges for the copies"
        )

    def group(event: Event) -> Event:
        return Group(event, copies)

    return replace(draw, amplify=lambda event: group(draw.amplify(event)), spent=tuple(map(group, draw.spent)))


def _joined(dataset: Any) -> bool:
    """Could a record be in it twice, as far as can be seen?"""
    if type(dataset) is TensorDataset:
        return all(tensor.stride(0) == 0 for tensor in dataset.tensors)
    return isinstance(dataset, Subset | ConcatDataset | list) or _inner(dataset) is not None


def _origins(dataset: Any, rows: Rows, roots: dict[Hashable, int]) -> tuple[Rows, Rows]:
    """Where records come from: the number of a root, and a place in it."""
    if isinstance(dataset, Subset):
        chosen = np.asarray(dataset.indices, dtype=np.int64)
        return _origins(dataset.dataset, chosen[rows], roots)
    if isinstance(dataset, ConcatDataset):
        ends = np.asarray(dataset.cumulative_sizes, dtype=np.int64)
        rows = np.where(rows < 0, rows + ends[-1], rows)
        part = np.searchsorted(ends, rows, side="right")
        root, row = np.empty_like(rows), np.empty_like(rows)
        for i, inner in enumerate(dataset.datasets):
            of = part == i
            root[of], row[of] = _origins(inner, rows[of] - (ends[i - 1] if i else 0), roots)
        return root, row
    if isinstance(dataset, TensorDataset):
        return _in_memory(dataset.tensors, np.where(rows < 0, rows + len(dataset), rows), roots)
    if isinstance(dataset, list):
        things = [dataset[i] for i in rows.tolist()]
        if not any(isinstance(thing, _VALUES) for thing in things):
            return _all_of(("objects",), rows, roots), np.array([id(thing) for thing in things], dtype=np.int64)
    inner = _inner(dataset)
    if inner is not None:
        return _origins(inner, rows, roots)
    if (rows < 0).any():
        rows = np.where(rows < 0, rows + len(dataset), rows)
    return _all_of((id(dataset),), rows, roots), rows


def _in_memory(tensors: tuple[Tensor, ...], rows: Rows, roots: dict[Hashable, int]) -> tuple[Rows, Rows]:
    """Rows of tensors by the address of the first tensor that has rows of its own."""
    of = next((tensor for tensor in tensors if tensor.stride(0)), tensors[0])
    storage = ("memory", str(of.device), of.untyped_storage().data_ptr())
    first, step, width = int(of.storage_offset()), int(of.stride(0)), of.element_size()
    return _all_of(storage, rows, roots), (first + rows * step) * width


def _all_of(name: Hashable, rows: Rows, roots: dict[Hashable, int]) -> Rows:
    return np.full(len(rows), roots.setdefault(name, len(roots)), dtype=np.int64)


def _inner(dataset: Any) -> Any:
    """The dataset inside a wrapper, such as one that transforms each record: the only one, of the same length."""
    if isinstance(dataset, TensorDataset | Subset | ConcatDataset) or not isinstance(dataset, Dataset):
        return None
    found = [value for value in vars(dataset).values() if isinstance(value, Dataset)]
    return found[0] if len(found) == 1 and _length(found[0]) == _length(dataset) and _joined(found[0]) else None


def _length(dataset: Any) -> int | None:
    try:
        return len(dataset)
    except TypeError:
        return None
