"""Finds how often one record is in a dataset: by its structure, its memory and its contents.

A guarantee is about one record of the dataset object. A record that is in it m times can move a sum m times as far, so
what is done to such a dataset is charged as seen by m records that come and go together.

What is seen by structure: `Subset` and `ConcatDataset` in any nesting, tables of `datasets` with repeated or joined
rows, tensors that share rows of one storage, one object several times in a list, wrappers of the same length around
such things, and two wrappers around the same data that are joined, as in `ConcatDataset([plain, augmented])`.

What is seen by content: rows of tensors that are equal, where rows are so rich that equality is no accident. If a tenth
of the rows have a twin, somebody copied them, and they are charged as a group; if fewer have one, the claim names it.

Privacy: group privacy, event by event: the coins of the m copies are independent, so m records under Poisson sampling
are what `Group` is about. In a pass of disjoint batches the copies meet several of them, and there is no theorem here:
refused.
"""

from __future__ import annotations

import secrets
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, replace
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

SOME_EQUAL = (
    "records that are in the dataset more than once: some are equal in every number, and count as different ones"
)
"""The name of what a claim does not cover where a few records are equal."""

_MOST_ROWS, _COMPARED, _DISTINCT = 500_000, 2_000, 32
"""Rows of tensors are looked at up to so many, compared in full up to so many, and must have so many different ones."""
_NUMBERS_AT_ONCE = 2**19
"""The size of the parts in which the digests of rows are computed."""
_MOST_BYTES = 2**28
"""The size in bytes up to which arrays of numpy are compared."""
_POOR_SHARE, _LARGE_SCALE = 0.01, 0.1
"""The share of different rows that may agree in half of their columns, and the share of twins that shows copying."""

_VALUES = (int, float, complex, str, bytes, bool, type(None), torch.dtype)
"""Python may keep one object for equal values of these: they are different records."""


def count_most_copies(dataset: Any, n: int) -> int:
    """Returns how often the most frequent record is repeated in the dataset.

    >>> count_most_copies(Subset(TensorDataset(torch.rand(5, 2)), [0, 1, 1, 4]), 4)
    2
    """
    if not _may_repeat_records(dataset):
        return EqualRows.find_in(dataset).copies
    roots: dict[Hashable, int] = {}
    root, row = _find_origins(dataset, np.arange(n, dtype=np.int64), roots)
    # Records with the same origin are neighbours in this order; the longest run is the number of copies.
    order = np.lexsort((row, root))
    new = np.flatnonzero((np.diff(root[order]) != 0) | (np.diff(row[order]) != 0)) + 1
    return max(int(np.diff(np.concatenate([[0], new, [n]])).max()), EqualRows.find_in(dataset).copies)


@dataclass(frozen=True)
class EqualRows:
    """The findings about repeated records from the contents of a dataset of tensors."""

    copies: int = 1  # of one record, at most, if records were copied on a large scale
    has_some: bool = False  # a few records are equal

    @staticmethod
    def find_in(dataset: Any) -> EqualRows:
        """Returns what equal rows of tensors show of repeated records; nothing for other datasets, whose records are
        read one by one.
        """
        tensors, rows = _tensors_with_records(dataset)
        if not _DISTINCT < len(rows) <= _MOST_ROWS or any(not t.is_cpu or t.is_sparse for t in tensors):
            return EqualRows()
        keys = np.random.default_rng(secrets.randbits(128))
        # First by a few columns, which is cheap; rows that agree there are compared in full.
        digests = _digest_tensor_rows(tensors, rows, keys)
        _, first, group, counts = np.unique(digests, return_index=True, return_inverse=True, return_counts=True)
        alike = np.flatnonzero(counts[group] > 1)
        if not len(alike):
            return EqualRows()
        order = np.lexsort(
            (group[alike], -counts[group[alike]])
        )  # rows that agree side by side, the most frequent first
        compared = alike[order][:_COMPARED]
        _, same = np.unique(_digest_tensor_rows(tensors, rows[compared], keys, columns=None), return_counts=True)
        # Estimate the share of rows with a twin. Where rows are poor, equality may be an accident and shows nothing.
        twins = float(same[same > 1].sum()) * len(alike) / len(compared)
        distinct = rows[first[:_COMPARED]]
        if twins == 0 or len(distinct) < _DISTINCT or not _are_rich(tensors, distinct, keys):
            return EqualRows()
        large = twins >= _LARGE_SCALE * len(rows)
        return EqualRows(int(same.max()) if large else 1, has_some=not large)


def _are_rich(tensors: Sequence[Tensor], rows: Rows, keys: np.random.Generator) -> bool:
    """Returns whether different rows hardly ever agree in half of their columns, so that equal rows must be repeated
    records.
    """
    for _ in range(3):  # other halves each time
        halves = _digest_tensor_rows(tensors, rows, keys, columns=None, every=2)
        if len(rows) - len(np.unique(halves)) > _POOR_SHARE * len(rows):
            return False
    return True


def _tensors_with_records(dataset: Any) -> tuple[Sequence[Tensor], Rows]:
    """Returns tensors with one row per record, in which repeated records are looked for, and which of their rows are
    records; no rows where there are none.
    """
    # Known kinds of datasets show their tensors; a Subset may list a row several times, and that is what is looked for.
    if type(dataset) is TensorDataset:
        return dataset.tensors, np.arange(len(dataset), dtype=np.int64)
    if type(dataset) is Subset and type(dataset.dataset) is TensorDataset:
        return dataset.dataset.tensors, np.asarray(dataset.indices, dtype=np.int64)
    # A dataset of the user's own is compared by the arrays in memory that it holds with one row per record.
    n, held = _length_or_none(dataset), []
    for value in getattr(dataset, "__dict__", {}).values():
        if isinstance(value, Tensor) and value.dim() and len(value) == n and not value.is_complex():
            held.append(value)
        elif isinstance(value, np.ndarray) and value.ndim and len(value) == n and value.dtype.kind in "biuf":
            if type(value) is not np.ndarray or value.nbytes > _MOST_BYTES:
                return (), np.zeros(0, dtype=np.int64)  # it may lie in a file
            held.append(torch.from_numpy(value.astype(np.float64)))
    return held, np.arange(n or 0 if held else 0, dtype=np.int64)


def _digest_tensor_rows(
    tensors: Sequence[Tensor], rows: Rows, keys: np.random.Generator, columns: int | None = 16, every: int = 1
) -> NDArray[np.uint64]:
    """Returns one keyed number per row, equal for repeated records: of some random columns, or of every one or two."""
    total = np.zeros(len(rows), dtype=np.uint64)
    for tensor in tensors:
        flat = tensor.detach().reshape(len(tensor), -1)
        # Columns and weights are random, so that different rows have equal digests only by chance.
        chosen = keys.permutation(flat.shape[1])
        chosen = np.sort(chosen[: max(1, len(chosen) // every)][:columns])
        weights = keys.integers(0, 2**64, size=len(chosen), dtype=np.uint64) | np.uint64(1)
        # Rows may be wide (all token vectors of a text), so few of them are read at once.
        at_once = max(1, _NUMBERS_AT_ONCE // max(1, len(chosen)))
        for start in range(0, len(rows), at_once):
            part = torch.from_numpy(rows[start : start + at_once])
            values = _select(flat, part, torch.from_numpy(chosen)).double().numpy() + 0.0
            # A multiplication and a shift mix the bits of each number before the weighted sum, as hash functions do.
            mixed = np.ascontiguousarray(values).view(np.uint64)
            mixed *= np.uint64(0x9E3779B97F4A7C15)
            mixed ^= mixed >> np.uint64(29)
            total[start : start + at_once] += mixed @ weights
    return total


def _select(flat: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Returns the rows and columns of a matrix in which repeated records are looked for, chosen in the cheaper order."""
    if len(columns) * 4 < flat.shape[1]:
        return flat[rows[:, None], columns[None]]
    chosen = flat[rows]
    return chosen if len(columns) == flat.shape[1] else chosen[:, columns]


def charge_as_group(draw: Draw, copies: int, sampler: Sampler) -> Draw:
    """Returns the draw of a dataset with repeated records, charged as what `copies` records together see of it."""
    if copies == 1:
        return draw
    # Group privacy needs independent coins; in disjoint batches the copies meet several releases.
    if draw.cover is not None or sampler.size_is_public:
        raise Refusal(
            f"a record is {copies} times in the dataset, and {type(sampler).__name__} has no theorem for that.\n"
            "Whoever is stored several times would be protected less than the claim says.\n"
            "Give every record once (unique indices, no dataset joined to itself), or draw with Poisson, which "
            "charges for the copies."
        )

    # Whoever is in the dataset several times is protected as a group of that size.
    def group(event: Event) -> Event:
        return Group(event, copies)

    return replace(draw, amplify=lambda event: group(draw.amplify(event)), spent=tuple(map(group, draw.spent)))


def _may_repeat_records(dataset: Any) -> bool:
    """Returns whether the dataset may have repeated records, as far as its structure shows."""
    if type(dataset) is TensorDataset:
        return all(tensor.stride(0) == 0 for tensor in dataset.tensors)
    if isinstance(dataset, Subset | ConcatDataset | list) or _is_table(dataset):
        return True
    inner = _wrapped_dataset(dataset)
    return inner is not None and _may_repeat_records(inner)


def _find_origins(dataset: Any, rows: Rows, roots: dict[Hashable, int]) -> tuple[Rows, Rows]:
    """Returns where records come from, so that repeated ones are found: the number of a root for each, and a place in
    it.
    """
    # A Subset or a joined dataset leads to the places in the datasets below it; negative indices count from the end, as
    # in Python.
    if isinstance(dataset, Subset):
        chosen = np.asarray(dataset.indices, dtype=np.int64)
        return _find_origins(dataset.dataset, chosen[rows], roots)
    if isinstance(dataset, ConcatDataset):
        ends = np.asarray(dataset.cumulative_sizes, dtype=np.int64)
        rows = np.where(rows < 0, rows + ends[-1], rows)
        part = np.searchsorted(ends, rows, side="right")
        root, row = np.empty_like(rows), np.empty_like(rows)
        for i, inner in enumerate(dataset.datasets):
            in_part = part == i
            root[in_part], row[in_part] = _find_origins(inner, rows[in_part] - (ends[i - 1] if i else 0), roots)
        return root, row
    # Records in memory are known by their addresses, objects in a list by their identity.
    if isinstance(dataset, TensorDataset):
        return _origins_in_memory(dataset.tensors, np.where(rows < 0, rows + len(dataset), rows), roots)
    if _is_table(dataset):
        return _origins_in_table(dataset, np.where(rows < 0, rows + len(dataset), rows), roots)
    if isinstance(dataset, list):
        things = [dataset[i] for i in rows.tolist()]
        if not any(isinstance(thing, _VALUES) for thing in things):
            return _root_for_all(("objects",), rows, roots), np.array([id(thing) for thing in things], dtype=np.int64)
    # What is left is a dataset of the user's own.
    if (rows < 0).any():
        rows = np.where(rows < 0, rows + len(dataset), rows)
    # A wrapper of the same length around other data has the origins of those.
    inner = _wrapped_dataset(dataset)
    if inner is not None:
        return _find_origins(inner, rows, roots)
    # As a last resort the largest array that it holds tells records apart, or else their places do.
    held = _largest_array(dataset)
    if held is not None:
        return _origins_in_memory((held,), rows, roots)
    return _root_for_all((id(dataset),), rows, roots), rows


def _origins_in_memory(arrays: Sequence[Any], rows: Rows, roots: dict[Hashable, int]) -> tuple[Rows, Rows]:
    """Returns the addresses of rows in the first array that has rows of its own; repeated records share an address."""
    places = [_memory_layout(array) for array in arrays]
    device, first, step = next((place for place in places if place[2]), places[0])
    return _root_for_all(("memory", device), rows, roots), first + rows * step


def _memory_layout(array: Any) -> tuple[str, int, int]:
    """Returns the device of an array, the address of its first row and the bytes between rows, by which repeated
    records are found.
    """
    if isinstance(array, Tensor):
        return str(array.device), array.data_ptr(), int(array.stride(0)) * array.element_size()
    return "cpu", int(array.__array_interface__["data"][0]), int(array.strides[0])


def _root_for_all(name: Hashable, rows: Rows, roots: dict[Hashable, int]) -> Rows:
    return np.full(len(rows), roots.setdefault(name, len(roots)), dtype=np.int64)


def _wrapped_dataset(dataset: Any) -> Any:
    """Returns the dataset inside a wrapper, such as one that transforms records, to look for repeated records there:
    the only one of the same length.
    """
    if isinstance(dataset, TensorDataset | Subset | ConcatDataset) or not isinstance(dataset, Dataset):
        return None
    candidates = [value for value in vars(dataset).values() if isinstance(value, Dataset) or _is_table(value)]
    return (
        candidates[0] if len(candidates) == 1 and _length_or_none(candidates[0]) == _length_or_none(dataset) else None
    )


def _largest_array(dataset: Any) -> Any:
    """Returns the largest array in memory that a dataset holds with one row per record, to look for repeated records;
    None if there is none.
    """
    n = _length_or_none(dataset)
    held = [
        value
        for value in getattr(dataset, "__dict__", {}).values()
        if isinstance(value, Tensor | np.ndarray) and value.ndim and len(value) == n
    ]
    return max(held, key=lambda array: int(array.nbytes), default=None)


def _is_table(dataset: Any) -> bool:
    """Returns whether this is a `Dataset` of Hugging Face's `datasets`."""
    return type(dataset).__module__.startswith("datasets.") and hasattr(dataset, "select") and hasattr(dataset, "data")


def _origins_in_table(table: Any, rows: Rows, roots: dict[Hashable, int]) -> tuple[Rows, Rows]:
    """Returns where rows of an Arrow table lie, so that repeated records are found: tables that are selected from or
    joined share the memory of columns.
    """
    if table._indices is not None:
        rows = table._indices.column(0).to_numpy()[rows].astype(np.int64)
    column = table.data.table.column(0) if hasattr(table.data, "table") else table.data.column(0)
    root, row, begin = np.empty_like(rows), rows.copy(), 0
    # Rows of tables that share memory have the same address and place.
    for chunk in column.chunks:
        in_chunk = (rows >= begin) & (rows < begin + len(chunk))
        address = next((buffer.address for buffer in chunk.buffers()[1:] if buffer is not None), id(table))
        root[in_chunk] = roots.setdefault(("table", address), len(roots))
        row[in_chunk] = rows[in_chunk] - begin + chunk.offset
        begin += len(chunk)
    return root, row


def _length_or_none(dataset: Any) -> int | None:
    """Returns the length of a dataset that is searched for repeated records; None if it has no length."""
    try:
        return len(dataset)
    except TypeError:
        return None
