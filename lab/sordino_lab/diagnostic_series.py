"""Numbers of every step that diagnostics left in a run's rows, as arrays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sordino_lab.trained import TrainedCurve


def steps_of(one: TrainedCurve, name: str) -> NDArray[np.float64]:
    """All steps of a diagnostic for every seed: (seeds, steps) or (seeds, steps, k); what was not measured is nan.

    Seeds that ended early are cut to the shortest.
    """
    rows = [[value for row in run.rows for value in (row.get(name) or [])] for run in one.runs]
    shortest = min((len(row) for row in rows), default=0)
    width = max((len(value) for row in rows for value in row if isinstance(value, list)), default=0)
    empty = [np.nan] * width if width else np.nan
    filled = [[_plain(value, empty) for value in row[:shortest]] for row in rows]
    return np.asarray(filled, dtype=float).reshape(len(rows), shortest, *([width] if width else []))


def _plain(value: object, empty: object) -> object:
    if value is None:
        return empty
    if isinstance(value, list):
        return [np.nan if one is None else one for one in value]
    return value
