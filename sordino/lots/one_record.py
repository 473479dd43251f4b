"""Makes a dataset that holds one record and no other, from a dataset that holds many.

`dataset[i]` may read other rows than row i: a partner for mixup, the mean of a column, the neighbours in a graph. A
dataset with a single record cannot: whatever it computes over its rows is computed of that record.

    TensorDataset, list         the row
    Subset, ConcatDataset       the record of the dataset inside
    datasets.Dataset            select([i])
    any other object            a shallow copy in which every attribute with one entry per record has the one of this record

Privacy: rows that a dataset does not hold in its attributes (files that it reads by number, global variables) cannot be
taken away from it. `dataset_of_one_record` returns None if it finds no rows, or finds rows in a closure or a global
variable as well.
"""

from __future__ import annotations

import copy
import types
from collections import deque
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Subset, TensorDataset

_DEPTH = 3


def dataset_of_one_record(dataset: Any, index: int) -> Any | None:
    """Returns a dataset of length 1 that holds the one record at `index` of a larger dataset, or None if that cannot be
    made.

    >>> dataset_of_one_record(["a", "b", "c"], 1)
    ['b']
    """
    # Known kinds of datasets are cut by their own structure. Exact types only: a subclass may look at other rows.
    if type(dataset) is TensorDataset:
        return TensorDataset(*(column[index : index + 1] for column in dataset.tensors))
    if type(dataset) in (list, tuple):
        return [dataset[index]]
    if type(dataset) is Subset:
        inner = dataset_of_one_record(dataset.dataset, int(dataset.indices[index]))
        return None if inner is None else Subset(inner, [0])
    if type(dataset) is ConcatDataset:
        part = int(np.searchsorted(dataset.cumulative_sizes, index, side="right"))
        before = dataset.cumulative_sizes[part - 1] if part else 0
        inner = dataset_of_one_record(dataset.datasets[part], index - before)
        return None if inner is None else ConcatDataset([inner])
    if type(dataset).__module__.split(".")[0] == "datasets" and hasattr(dataset, "select"):
        return dataset.select([index], keep_in_memory=True)
    # An object of the user's own is copied with one row, if all its rows are in attributes.
    length = len(dataset)
    if length < 2 or _reads_rows_elsewhere(type(dataset), length):
        return None
    made, found = _copy_with_one_row(dataset, length, index, _DEPTH)
    return made if found else None


def _copy_with_one_row(thing: Any, length: int, index: int, deep: int) -> tuple[Any, bool]:
    """Returns a shallow copy of an object whose attributes hold the one record's row each, and whether any of them held
    rows.
    """
    copied, has_rows = copy.copy(thing), False
    for name, value in list(vars(thing).items()):
        new, rows = _cut_to_one_row(value, length, index, deep)
        if new is not value:
            object.__setattr__(copied, name, new)
        has_rows = has_rows or rows
    return copied, has_rows


def _cut_to_one_row(value: Any, length: int, index: int, deep: int) -> tuple[Any, bool]:
    """Returns an attribute of a dataset of one record, with the one row it may show, and whether it held rows;
    containers are copied.
    """
    # Arrays: a first dimension as long as the dataset is taken for its records.
    if isinstance(value, Tensor | np.ndarray):
        held = value.ndim > 0 and value.shape[0] == length
        return (value[index : index + 1], True) if held else (value, False)
    # Tables and sequences with one entry per record are cut to one row; short containers are searched.
    if hasattr(value, "iloc") and len(value) == length:
        return value.iloc[index : index + 1], True
    if type(value) in (list, tuple, deque):
        if len(value) == length:
            return type(value)([value[index]]), True
        if len(value) > 64 or not deep:
            return copy.copy(value), False
        parts = [_cut_to_one_row(each, length, index, deep - 1) for each in value]
        return type(value)(part for part, _ in parts), any(rows for _, rows in parts)
    # Dicts by index are cut to one entry; others are searched like any container.
    if isinstance(value, dict):
        if len(value) == length and index in value:
            return {0: value[index]}, True
        if len(value) > 64 or not deep:
            return copy.copy(value), False
        named = {name: _cut_to_one_row(each, length, index, deep - 1) for name, each in value.items()}
        made = copy.copy(value)
        made.update({name: each for name, (each, _) in named.items()})
        return made, any(rows for _, rows in named.values())
    if isinstance(value, set):
        return set(value), False
    # A nested dataset is cut by the rules of the outer one.
    if hasattr(type(value), "__getitem__") and hasattr(type(value), "__len__") and not isinstance(value, str | bytes):
        try:
            inside = dataset_of_one_record(value, index) if len(value) == length else None
        except TypeError:
            inside = None
        if inside is not None:
            return inside, True
    # Any other object is copied with its own attributes cut, up to some depth.
    if getattr(value, "__dict__", None) and deep and not isinstance(value, nn.Module | type | types.FunctionType):
        try:
            return _copy_with_one_row(value, length, index, deep - 1)
        except Exception:  # a class that cannot be copied
            return value, False
    return value, False


def _reads_rows_elsewhere(kind: type, length: int) -> bool:
    """Returns whether a method of the class holds an entry per record in a closure or a global variable, so that no
    dataset of one record can be made.
    """
    # Classes of Python and torch hold no records.
    for each in kind.__mro__:
        if each.__module__.split(".")[0] in ("builtins", "torch", "typing", "abc"):
            continue
        # Look into closures and global variables of every method, and into class attributes.
        for member in vars(each).values():
            function = getattr(member, "fget", None) or getattr(member, "__func__", member)
            if isinstance(function, types.FunctionType):
                held = [cell.cell_contents for cell in function.__closure__ or () if _is_cell_filled(cell)]
                held += [function.__globals__[n] for n in function.__code__.co_names if n in function.__globals__]
                if any(_has_rows(one, length) for one in held):
                    return True
            elif _has_rows(member, length):
                return True
    return False


def _is_cell_filled(cell: types.CellType) -> bool:
    """Returns whether the cell of a closure holds something, which is searched for rows other than the one record's."""
    try:
        cell.cell_contents  # noqa: B018
    except ValueError:
        return False
    return True


def _has_rows(thing: Any, length: int) -> bool:
    if isinstance(thing, Tensor | np.ndarray):
        return thing.ndim > 0 and thing.shape[0] == length
    return isinstance(thing, list | tuple | dict | deque) and len(thing) == length
