"""Fitted tables: whether a table shows that something was fitted on its records.

It may have been a scaler, a projection, an imputer, or a maker of synthetic rows.

A transformer that was fitted on the records read them without noise, and one record moves what it makes of all the others.
It may have been fitted anywhere: in a pipeline, before it, in a function. What it leaves in the table is the same: columns
with mean 0 and deviation 1 to the last digit, extremes at exactly 0 and 1, no correlation at all, rows on the line between
two others. Public constants do not do that: a mean by public constants misses 0 by about a deviation over √n.

Columns of whole numbers are left out: a balanced ±1 has mean 0 and deviation 1 by design.

Privacy: that such a sign was found voids the claim, in words that quote nothing of the table.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Table = NDArray[np.float64]

_FEWEST_ROWS = 20
_FEWEST_VALUES = 16
"""Columns with fewer different values are left out: categories, counts, grades."""
_MOST_ROWS, _MOST_COLUMNS = 50_000, 256
"""Tables are looked at up to so many rows and columns."""
_CENTRED, _SCALED = 1e-6, 1e-5
"""By how much of a deviation a fitted mean misses 0, and a fitted deviation misses 1, in single precision."""
_DIFFERENT = 0.9
"""The share of different values in a column by which synthetic rows are looked for."""
_SAMPLED, _NEAREST = 12, 150
"""Rows that are tried as synthetic, and the rows near each that it may lie between."""

_CURE = (
    "a fit on the records reads them without noise; give low= and high=, the public bounds of the columns, in its place, "
    "or fit it on public data, or release it with sordino.ask"
)

_SYNTHETIC = "the table holds rows made of pairs of other rows, as SMOTE makes them"


def find_sign_of_fitting(table: Any) -> str | None:
    """Returns why a table has no guarantee, if it shows that something (a scaler, a projection, an imputer) was fitted
    on it; else None.
    """
    found = find_what_was_fitted(table)
    if found is None:
        return None
    if found == _SYNTHETIC:
        return f"{found}, so one record is in many rows; give every record once"
    return f"the table was fitted on these records before fit was called: {found}; {_CURE}"


def find_what_was_fitted(table: Any) -> str | None:
    """Returns what shows that something (a scaler, a projection, an imputer, a maker of synthetic rows) was fitted on a
    table, or None.
    """
    x = np.asarray(table)
    # Small tables and whole numbers show such signs by accident.
    if x.ndim != 2 or x.dtype.kind != "f" or len(x) < _FEWEST_ROWS:
        return None
    exact = x.dtype == np.float64
    columns = _measured_columns(x[:, :_MOST_COLUMNS].astype(np.float64))
    measured = columns if len(columns) else None
    if measured is not None and len(x) <= 10 * _MOST_ROWS:
        # Each sign is one that public constants do not leave.
        for shows_sign, what in (
            (_is_standardised, "the columns have mean 0 and deviation 1 to the last digit"),
            (_is_stretched, "the columns begin and end exactly at the same two numbers"),
            (_is_robustly_scaled, "the columns have median 0 and quartiles at distance 1"),
            (_is_ranked, "the columns are evenly spread ranks"),
            (_is_decorrelated, "the columns are not correlated at all"),
            (_is_imputed, "a value that is there many times is the mean of the others"),
        ):
            if shows_sign(measured):
                return what
    if _has_synthetic_rows(x[:, :_MOST_COLUMNS].astype(np.float64), exact=exact):
        return _SYNTHETIC
    return None


def _measured_columns(x: Table) -> Table:
    """Returns the columns of measured numbers of a table that may have been fitted on: finite, not whole, of many
    values.
    """
    kept = []
    for column in x.T:
        # Whole numbers are balanced by design, and values that are not finite have no mean to test.
        if np.isfinite(column).all() and (column != np.rint(column)).any():
            some = column if len(column) <= _MOST_ROWS else column[:_MOST_ROWS]
            if len(np.unique(some)) >= _FEWEST_VALUES:
                kept.append(column)
    return np.array(kept)


def _is_standardised(columns: Table) -> bool:
    """Returns whether a table shows a fitted scaler: a column has mean 0 and deviation 1, or all of several have mean
    0.
    """
    mean, n = columns.mean(axis=1), columns.shape[1]
    deviation = columns.std(axis=1)
    # By public constants a mean misses 0 by about a deviation over √n, far more than this.
    centred = np.abs(mean) < _CENTRED * deviation
    unit = np.abs(deviation - 1) < _SCALED
    # Some scalers divide by n and others by n − 1: either deviation of 1 is a sign.
    unit |= np.abs(deviation * np.sqrt(n / (n - 1)) - 1) < _SCALED
    return bool((centred & unit).any() or (len(columns) >= 2 and centred.all()) or (len(columns) >= 3 and unit.all()))


def _is_stretched(columns: Table) -> bool:
    """Returns whether a table shows a fitted scaler of ranges: every column attains the same two extremes, or the same
    largest size, in one row each.
    """
    low, high = columns.min(axis=1), columns.max(axis=1)
    # Cutting at public bounds puts many rows at an extreme; a fitted range puts the one row there that set it.
    once = ((columns == low[:, None]).sum(axis=1) == 1) & ((columns == high[:, None]).sum(axis=1) == 1)
    same = np.ptp(low) < 1e-6 and np.ptp(high) < 1e-6
    usual = any(abs(low[0] - a) < 1e-6 and abs(high[0] - b) < 1e-6 for a, b in ((0, 1), (-1, 1)))
    if once.all() and same and (usual or len(columns) >= 2):
        return True
    # A scaler by the largest size leaves that size at 1 in a single row, with either sign.
    size = np.abs(columns)
    most = size.max(axis=1)
    single = ((size >= most[:, None]).sum(axis=1) == 1).all()
    return bool(len(columns) >= 2 and single and (np.abs(most - 1) < 1e-7).all())


def _is_robustly_scaled(columns: Table) -> bool:
    """Returns whether every column has median 0 and an interquartile range of 1."""
    low, middle, high = np.percentile(columns, [25, 50, 75], axis=1)
    return bool(((np.abs(middle) < _CENTRED) & (np.abs(high - low - 1) < _SCALED)).all())


def _is_ranked(columns: Table) -> bool:
    """Returns whether every column is its own ranks, spread over [0, 1]."""
    ordered = np.sort(columns, axis=1)
    return bool((np.abs(ordered - np.linspace(0, 1, columns.shape[1])) < 2e-3).all())


def _is_decorrelated(columns: Table) -> bool:
    """Returns whether a table shows a fitted projection: several columns have no correlation with one another, as after
    a principal component analysis.
    """
    # With as many columns as rows correlations say nothing: the columns are dependent anyway.
    if not 2 <= len(columns) < columns.shape[1]:
        return False
    deviation = columns.std(axis=1)
    centred = np.abs(columns.mean(axis=1)) < 1e-3 * deviation
    off = np.abs(np.atleast_2d(np.corrcoef(columns))[np.triu_indices(len(columns), 1)])
    return bool(centred.all() and (off < 1e-5).all())


def _is_imputed(columns: Table) -> bool:
    """Returns whether a table shows a fitted imputer: the one value that a column has several times is the mean of the
    others.
    """
    for column in columns:
        values, counts = np.unique(column, return_counts=True)
        # A column with many repeated values was measured coarsely, where a mean is hit by accident.
        if counts.max() < 3 or (counts > 1).sum() > 0.02 * len(values) + 1:
            continue
        often = values[counts.argmax()]
        others = column[column != often]
        if abs(often - others.mean()) < 1e-6 * others.std():
            return True
    return False


def _has_synthetic_rows(x: Table, *, exact: bool) -> bool:
    """Returns whether a table shows a fitted maker of synthetic rows: rows at the end, where such rows are put, lie on
    the line between two others.
    """
    n, d = x.shape
    if n > _MOST_ROWS or d < (2 if exact else 5) or not np.isfinite(x).all():
        return False
    # Only columns in which hardly any two rows agree: points on a grid lie between others all the time.
    varied = x[:, [len(np.unique(column)) >= _DIFFERENT * n for column in x.T]]
    if varied.shape[1] < (2 if exact else 5):
        return False
    # Being on a line survives scaling the columns; in like units no one column decides which rows are near.
    scaled = varied / np.where(varied.std(axis=0) > 0, varied.std(axis=0), 1.0)
    # Synthetic rows are put behind the others, so a few rows of the last twentieth are enough to find them.
    tail = np.unique(np.linspace(n - max(2, n // 20), n - 1, _SAMPLED).astype(np.int64))
    return sum(_lies_between_two(scaled, int(i), 1e-12 if exact else 1e-6) for i in tail) >= max(3, len(tail) // 2)


def _lies_between_two(x: Table, row: int, tolerance: float) -> bool:
    """Returns whether a row of a table that may have been fitted on lies on the line between two of the rows nearest to
    it, as synthetic rows do.
    """
    away = x - x[row]
    far = np.linalg.norm(away, axis=1)
    near = np.argsort(far)[: _NEAREST + 1]
    near = near[far[near] > 0]
    if len(near) < 2:
        return False
    # The row lies between two others exactly if it sees them in opposite directions: a cosine of −1.
    directions = away[near] / far[near, None]
    return bool((directions @ directions.T).min() < -1 + tolerance)
