"""Remembers gradient lengths between sorted lots, so that only the likeliest candidates are measured before each lot.

Exact order takes the length of every record that is left, before every lot. Here a prediction of every record's length is
kept and follows the model from lot to lot. Before a lot `budget` records are measured:

    a tenth      the records that were not measured for longest, so that nothing is forgotten
    the others   the longest by prediction, in ten rounds; after each round the prediction is fitted again

From one lot to the next the prediction of every record is moved by a ridge regression on what was measured in between:

    log(length now) − log(length predicted before) ≈ Σ_j w_j · x_j        with the penalty λ‖w‖²

x: the class of the record, the same times its predicted length, and times a few properties of the record (brightness,
contrast and roughness of an image), their squares, and a small picture of it. All of a class, or
all bright records, grow and shrink together when the model moves; that is what can be predicted.

The prediction only chooses who is measured. The lot is filled from lengths measured at the current model. How many of the
exact lot are in it depends on how far the model moves: docs/sorted.md has what was measured, which is from most to few.

Privacy: lengths, summaries, and everything fitted to them are bare values of private records. What is remembered is in the
memory that a draw leaves for the next one, which is as secret as the data. Lots by rank have no guarantee, with a memory
or without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sordino.rng.streams import Rng
from sordino.sampling.record_access import Lengths, Records, Rows, Summaries, pack_array, unpack_array

_ROUNDS = 10
_STALE = 0.1
"""Share of what is measured that goes to the stalest records."""
_PENALTY = 3.0
"""λ of the ridge regression, in the unit of one record."""
_TINY = 1e-6
"""A length below this counts as this in a logarithm."""
_MOST_CLASSES = 100
"""Classes that the regression tells apart at most; of more it sees none."""

Choose: TypeAlias = Callable[[Lengths, Rows, int], Rows]
"""A function from lengths, the rows that have them and a number to positions of so many that a lot would prefer."""
Features: TypeAlias = NDArray[np.float32]


@dataclass(frozen=True)
class RememberedLengths:
    """What is known of every record: the logarithm of its length, measured or predicted, and the lot before which it was
    last measured.
    """

    logs: Lengths
    measured_at: NDArray[np.int64]

    def pack(self) -> dict[str, Any]:
        """Returns the remembered lengths as JSON for a checkpoint, which is as secret as the data."""
        return {"logs": pack_array(self.logs), "measured_at": pack_array(self.measured_at)}

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> RememberedLengths:
        """Returns the remembered lengths from what `pack` returned."""
        return cls(unpack_array(packed["logs"], np.float32), unpack_array(packed["measured_at"], np.int64))


def measure_everyone(records: Records, rows: Rows, lot: int) -> tuple[Lengths, RememberedLengths]:
    """Returns the lengths of all candidates, measured now, and what is remembered; other records are never asked for."""
    lengths = records.lengths(rows)
    logs = np.zeros(len(records), dtype=np.float32)
    logs[rows] = _logarithms(lengths)
    return lengths, RememberedLengths(logs, np.full(len(records), lot, dtype=np.int64))


def measure_likeliest(
    records: Records,
    before: RememberedLengths,
    rows: Rows,
    features: RecordFeatures,
    budget: int,
    lot: int,
    choose: Choose,
    rng: Rng,
) -> tuple[Rows, Lengths, RememberedLengths]:
    """Measures `budget` of the candidates, and returns which they are, their lengths and what is remembered from now on.

    Args:
        records: the records that lengths are asked of.
        before: what is remembered of them.
        rows: the candidates of the next lot.
        features: of all records.
        budget: how many candidates are measured.
        lot: the number of the next lot.
        choose: which of some candidates a lot would prefer, by their predicted lengths.
        rng: breaks ties between candidates that were measured before the same lot.

    """
    lengths = np.zeros(len(rows), dtype=np.float32)
    is_measured = np.zeros(len(rows), dtype=bool)

    def measure(at: Rows) -> None:
        lengths[at], is_measured[at] = records.lengths(rows[at]), True

    # The records that were not measured for longest come first; of equally old ones, a random choice.
    shuffled = rng.permutation(len(rows))
    stalest = shuffled[np.argsort(before.measured_at[rows[shuffled]], kind="stable")]
    stale = max(1, round(_STALE * budget))
    measure(stalest[:stale])
    # In every round the regression is fitted to all that was measured before this lot, and the longest by it are measured.
    old = before.logs[rows]
    x = features.for_candidates(rows, old)
    for part in np.array_split(np.arange(budget - stale), min(_ROUNDS, budget - stale)):
        unknown = np.flatnonzero(~is_measured)
        predicted = _predict_logs(x, old, lengths, is_measured)
        measure(unknown[choose(np.exp(predicted[unknown]), rows[unknown], len(part))])
    # What was measured is remembered as it is, and of the others what all that was measured predicts.
    logs, measured_at = before.logs.copy(), before.measured_at.copy()
    logs[rows] = np.where(is_measured, _logarithms(lengths), _predict_logs(x, old, lengths, is_measured))
    measured_at[rows[is_measured]] = lot
    return rows[is_measured], lengths[is_measured], RememberedLengths(logs, measured_at)


class RecordFeatures:
    """What the prediction of remembered lengths knows of every record that does not change: its class and its summary."""

    def __init__(self, classes: Rows, summaries: Summaries) -> None:
        """Takes the class and the summary of every record; all classes alike where there are none."""
        kinds, place = np.unique(classes, return_inverse=True)
        known = len(kinds) <= _MOST_CLASSES
        self._classes: Features = np.eye(len(kinds), dtype=np.float32)[place] if known else _ones(len(classes))
        few, many = (
            _standardise(np.nan_to_num(some, posinf=0.0, neginf=0.0)) for some in (summaries.few, summaries.many)
        )
        self._fixed: Features = np.concatenate(
            [self._classes, _cross(self._classes, few), np.square(few), many], axis=1
        )

    def for_candidates(self, rows: Rows, logs: Lengths) -> Features:
        """Returns the regressors of the candidates, of which these are the predicted logarithms of lengths."""
        by_length = self._classes[rows] * _standardise(logs[:, None])
        return np.concatenate([self._fixed[rows], by_length], axis=1)


def _predict_logs(x: Features, old: Lengths, lengths: Lengths, is_measured: NDArray[np.bool_]) -> Lengths:
    """Returns the logarithms of the lengths of all candidates as they are now, predicted from those that were measured."""
    # w = (XᵀX + λ1)⁻¹ Xᵀ (log length now − log length predicted before), over what was measured.
    seen = x[is_measured]
    growth = _logarithms(lengths[is_measured]) - old[is_measured]
    w = np.linalg.solve(seen.T @ seen + np.float32(_PENALTY) * np.eye(x.shape[1], dtype=np.float32), seen.T @ growth)
    # A linear fit may run away outside of what was seen, so no record is said to grow more than any that was measured.
    moved: Lengths = old + np.clip(x @ w, growth.min(), growth.max())
    return moved


def _logarithms(lengths: Lengths) -> Lengths:
    logs: Lengths = np.log(np.maximum(lengths, np.float32(_TINY)))
    return logs


def _ones(n: int) -> Features:
    return np.ones((n, 1), dtype=np.float32)


def _cross(classes: Features, few: Features) -> Features:
    """Returns every column of `few` within every class."""
    return (classes[:, :, None] * few[:, None, :]).reshape(len(classes), -1)


def _standardise(columns: Features) -> Features:
    """Returns columns with mean 0 and deviation 1; a column whose entries are all alike becomes 0 and says nothing."""
    deviation = columns.std(axis=0, dtype=np.float64)
    centred = columns - columns.mean(axis=0, dtype=np.float64)
    standardised: Features = (centred / np.where(deviation > 0, deviation, 1.0)).astype(np.float32)
    return standardised
