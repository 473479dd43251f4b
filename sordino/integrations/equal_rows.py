"""Equal rows: whether a table has rows of another, by salted digests.

Tables hold numbers or tokenised texts. Copies lie in other memory, so they are compared by content.

Copies are known again when they were changed a little: numbers that were rounded agree on a grid of a fraction of a
column's deviation, texts agree without their padding. A part of the rows is enough, if it is more than chance explains.

Privacy: a row of which the training set has two is no sign of anybody, so rows that it has once are looked for. How many
independent records would hit such a row by chance is estimated from the training set itself (Good 1953): the mass of
everything seen once is about 2·N₂/n, where N₂ is the number of different rows that are there twice.
"""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

_MOST_BY_CHANCE, _ALARM = 0.37, 1e-6
"""Of independent records at most 1/e are expected to equal a row that the training set has once: a cell that holds
λ records in expectation holds exactly one with probability λe^−λ ≤ 1/e. More hits than that, or than the estimate, are an
accident once in a million times."""
_GRIDS = (None, 1 / 32, 1 / 4)
"""Rows are compared in every bit, and on grids of these shares of a column's deviation."""
_BLOCK = 4096
_TEXTS = 50_000
"""Texts that are read through to compare them; more would take more than a second."""
_salt = secrets.randbits(128)
"""The salt of this process: nobody can search for a row by its digest elsewhere."""


@dataclass(frozen=True)
class _Form:
    """The rows of a table that it has once, in one precision, as salted digests."""

    once: NDArray[np.uint64]
    chance: float  # that an independent record equals one of them
    unit: NDArray[np.float64] | None  # of the grid, one per column

    @staticmethod
    def of(digests: NDArray[np.uint64], unit: NDArray[np.float64] | None) -> _Form:
        """Returns the rows that a table has once in one form, from digests, one per row or several of which any may
        equal another table's.
        """
        if digests.ndim == 2:  # each digest of a row once
            ordered = np.sort(digests, axis=1)
            keep = np.column_stack([np.ones(len(ordered), dtype=bool), np.diff(ordered, axis=1) != 0])
            values, counts = np.unique(ordered[keep], return_counts=True)
        else:
            values, counts = np.unique(digests, return_counts=True)
        # Good 1953: what was seen once has mass about 2·N₂/n.
        twice, n = float((counts == 2).sum()), max(1, len(digests))
        # Several deviations above it, so that an estimate that came out low does not accuse independent data.
        upper = (2 * twice + 6 * np.sqrt(2 * twice + 1) + 4) / n
        return _Form(values[counts == 1], min(_MOST_BY_CHANCE, float(upper)), unit)

    def chance_explains(self, hits: int, rows: int) -> bool:
        """Returns whether chance explains that so many of a table's rows equal rows of another."""
        from scipy.stats import binom

        return bool(binom.sf(hits - 1, rows, self.chance) > _ALARM)


@dataclass(frozen=True)
class RowDigests:
    """A table in several precisions: enough to know its rows again, too little to read them."""

    forms: tuple[_Form, ...]

    @classmethod
    def of(cls, table: Any) -> RowDigests | None:
        """Returns the digests of the rows of a table of numbers, or of digests, by which equal rows are known; None
        where it is no such table.
        """
        exact = digests_of_rows(table)
        if exact is None:
            return None
        # Digests of texts have no columns to round, so there is one form only.
        if _are_digests(table):
            return cls((_Form.of(exact, None),))
        deviation = _to_array(table).reshape(len(exact), -1).std(axis=0, dtype=np.float64) if len(exact) else np.ones(1)
        # A constant column has no deviation to take a share of, and a unit of 0 would divide by 0.
        deviation = np.where(np.isfinite(deviation) & (deviation > 0), deviation, 1.0)
        units = [None if share is None else share * deviation for share in _GRIDS]
        forms = []
        for unit in units:
            row_digests = digests_of_rows(table, unit)
            assert row_digests is not None, "it is a table of numbers"
            forms.append(_Form.of(row_digests, unit))
        return cls(tuple(forms))

    def has_rows_of(self, table: Any, *, one_is_enough: bool = False) -> bool:
        """Returns whether more rows of a table equal rows of the digested one than chance explains.

        For a view of the same memory, which may hold other rows too, `one_is_enough` makes a single row enough.

        >>> x = np.random.default_rng(0).random((300, 4))
        >>> trained = RowDigests.of(x[:200])
        >>> [trained.has_rows_of(table) for table in (x[200:], x[:50].tolist(), x, x[:50].round(3))]
        [False, True, True, True]
        """
        for form in self.forms[:1] if one_is_enough else self.forms:
            # Both tables are rounded with the unit of the digested one, or equal rows would fall on different grids.
            row_digests = digests_of_rows(table, form.unit)
            if row_digests is None or not len(row_digests):
                return False
            hit = np.isin(row_digests, form.once)
            # A text has three digests, any of which may be the one that agrees.
            hits = int((hit if hit.ndim == 1 else hit.any(axis=1)).sum())
            if hits and (one_is_enough or not form.chance_explains(hits, len(row_digests))):
                return True
        return False


def _are_digests(table: Any) -> bool:
    return isinstance(table, np.ndarray) and table.dtype == np.uint64


def _to_array(table: Any) -> NDArray[Any]:
    return np.asarray(table.detach().cpu().numpy() if isinstance(table, Tensor) else table)


def digests_of_rows(table: Any, unit: NDArray[np.float64] | None = None) -> NDArray[np.uint64] | None:
    """Returns one digest per row of a table, equal for rows that are equal, or equal on a grid; None for no table of
    numbers.
    """
    if _are_digests(table):
        row_digests: NDArray[np.uint64] = table
        return row_digests
    # What is no table of numbers has no digests.
    try:
        array = _to_array(table)
        if array.ndim < 2 or array.dtype.kind not in "biuf":
            return None
    except (TypeError, ValueError):  # rows of different lengths, or no numbers
        return None
    wide = array.reshape(len(array), -1)
    if unit is not None and len(unit) != wide.shape[1]:
        return None
    # A digest is a random linear function of the row's bits, whose weights are a secret of the process.
    weights = np.random.default_rng(_salt).integers(0, 2**64, size=wide.shape[1], dtype=np.uint64)
    row_digests = np.empty(len(wide), dtype=np.uint64)
    # Block by block, so that a large table is never copied as a whole.
    for start in range(0, len(wide), _BLOCK):
        block = wide[start : start + _BLOCK]
        if unit is not None:
            # Numbers that are not finite count as 0: they have no place on a grid.
            block = np.rint(np.nan_to_num(block.astype(np.float64), posinf=0.0, neginf=0.0) / unit)
        block = np.ascontiguousarray(block, dtype=np.float32) + np.float32(0.0)  # −0.0 is 0.0
        row_digests[start : start + _BLOCK] = (block.view(np.uint32).astype(np.uint64) * weights).sum(
            axis=1, dtype=np.uint64
        )
    return row_digests


def _digests_of_texts(dataset: Any) -> NDArray[np.uint64] | None:
    """Returns digests of tokenised records, by which equal texts are known although tools copy and pad them; None for
    what is none, or too long to read.

    A text has three digests: as it is without what its mask hides, and without the run of equal tokens at its end or at its
    beginning, which is the padding where there is no mask.
    """
    try:
        if not 0 < len(dataset) <= _TEXTS or not isinstance(dataset[0], Mapping):
            return None
        return np.array([_digests_of_text(dataset[i]) for i in range(len(dataset))], dtype=np.uint64)
    except (TypeError, KeyError, ValueError, IndexError):
        return None


def _digests_of_text(record: Mapping[str, Any]) -> list[int]:
    """Returns the three digests by which one text is known to equal another: as it is, and without equal tokens at its
    end or beginning.
    """
    tokens = np.asarray(record["input_ids"], dtype=np.int64).reshape(-1)
    # Padding is what tools change most often, so masked tokens do not count.
    mask = record.get("attention_mask")
    if mask is not None and len(mask) == len(tokens):
        tokens = tokens[np.asarray(mask).reshape(-1) != 0]
    # Without a mask the padding is a run of one token at the end or at the beginning: both are cut off, in turn.
    other = np.flatnonzero(tokens != tokens[-1]) if len(tokens) else tokens
    ahead = np.flatnonzero(tokens != tokens[0]) if len(tokens) else tokens
    parts = (tokens, tokens[: other[-1] + 1] if len(other) else tokens, tokens[ahead[0] :] if len(ahead) else tokens)
    return [hash((_salt, part.tobytes())) % 2**64 for part in parts]


def table_of(dataset: Any) -> Any:
    """Returns a dataset's rows of numbers, or digests of its texts, to be compared for equal rows; None if it has
    neither.

    The rows are its first tensor, skorch's X, or the table itself.
    """
    if isinstance(dataset, Subset):
        # Only the rows of the subset: the rest of the table may well be what was trained on.
        full_table = table_of(dataset.dataset)
        return None if full_table is None else full_table[np.asarray(dataset.indices, dtype=np.int64)]
    # The first tensor holds the inputs; labels by themselves are equal for very many records.
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[0]
    texts = None if isinstance(dataset, np.ndarray | Tensor) else _digests_of_texts(dataset)
    if texts is not None:
        return texts
    inner = getattr(dataset, "X", None) if not isinstance(dataset, np.ndarray | Tensor) else None
    table = dataset if inner is None else inner
    return table if isinstance(table, np.ndarray | Tensor) or hasattr(table, "to_numpy") else None
