"""Whether a table of numbers, or of tokenised texts, has rows of another: by salted digests, as copies have other memory.

Privacy: a row of which the training set has two is no sign of anybody, so rows that it has once are looked for; and a few
equal rows are chance.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

_BY_CHANCE, _ALARM = 0.37, 1e-6
"""Of independent records at most 1/e are expected to equal a row that the training set has once: a cell that holds
λ records in expectation holds exactly one with probability λe^−λ ≤ 1/e. More than that, by Hoeffding's bound at one
false alarm in a million, is no accident."""
_BLOCK = 4096
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
