"""Remembers gradient lengths between sorted lots, so that only the likeliest candidates are measured before each lot.

Exact order takes the length of every record that is left, before every lot. Here each record keeps the lengths of its
gradient as they were last measured, one for each stretch of the network. Before a lot `budget` records are measured:

    a quarter       the records that were not measured for longest, so that nothing is forgotten
    three quarters  the longest by prediction, in three rounds; after each round the prediction is fitted again

The prediction is a ridge regression in each class of the records, on what was measured before this lot:

    log(new length / old length) ≈ w₀ + Σ_s w_s · z_s        z_s: the old log squared length in stretch s, standardised
                                                              over the candidates of the class; the penalty is λ‖w‖²

The regression only chooses who is measured. The lot is filled from lengths measured at the current model.

Privacy: lengths, and everything fitted to them, are bare values of private records. They are in the memory that a draw
leaves for the next one, which is as secret as the data. Lots by rank have no guarantee, with a memory or without.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from sordino.rng.streams import Rng
from sordino.sampling.record_access import Lengths, Records, Rows, pack_array, unpack_array

STRETCHES = 16
"""Stretches into which the parameters of a network are divided at most."""
_ROUNDS = 3
_PENALTY = 3.0
"""λ of the ridge regression, in the unit of one record."""
_TINY = 1e-12
"""A squared length below this counts as this in a logarithm."""

Squares: TypeAlias = NDArray[np.float32]
Choose: TypeAlias = Callable[[Lengths, Rows, int], Rows]
"""A function from lengths, the rows that have them and a number to positions of so many that a lot would prefer."""


@dataclass(frozen=True)
class RememberedLengths:
    """What is known of every record: its squared lengths by stretch, and the lot before which they were measured."""

    squares: Squares
    measured_at: NDArray[np.int64]

    def pack(self) -> dict[str, Any]:
        """Returns the remembered lengths as JSON for a checkpoint, which is as secret as the data."""
        return {
            "squares": pack_array(self.squares),
            "stretches": self.squares.shape[1],
            "measured_at": pack_array(self.measured_at),
        }

    @classmethod
    def unpack(cls, packed: Mapping[str, Any]) -> RememberedLengths:
        """Returns the remembered lengths from what `pack` returned."""
        squares = unpack_array(packed["squares"], np.float32)
        return cls(squares.reshape(-1, packed["stretches"]), unpack_array(packed["measured_at"], np.int64))


def measure_everyone(records: Records, rows: Rows, lot: int) -> RememberedLengths:
    """Returns the lengths of all candidates, measured now; those of other records are not known and never asked for."""
    squares = records.squared_lengths(rows)
    every = np.zeros((len(records), squares.shape[1]), dtype=np.float32)
    every[rows] = squares
    return RememberedLengths(every, np.full(len(records), lot, dtype=np.int64))


def measure_likeliest(
    records: Records,
    before: RememberedLengths,
    rows: Rows,
    classes: Rows,
    budget: int,
    lot: int,
    choose: Choose,
    rng: Rng,
) -> tuple[Rows, RememberedLengths]:
    """Measures `budget` of the candidates, and returns which they are and what is remembered from now on.

    Args:
        records: the records that lengths are asked of.
        before: what is remembered of them.
        rows: the candidates of the next lot.
        classes: the class of every candidate, or all the same where there are none.
        budget: how many candidates are measured.
        lot: the number of the next lot.
        choose: which of some candidates a lot would prefer, by their predicted lengths.
        rng: breaks ties between candidates that were measured before the same lot.

    """
    squares, measured_at = before.squares.copy(), before.measured_at.copy()
    is_measured = np.zeros(len(rows), dtype=bool)

    def measure(at: Rows) -> None:
        is_measured[at] = True
        squares[rows[at]] = records.squared_lengths(rows[at])
        measured_at[rows[at]] = lot

    # The records that were not measured for longest come first; of equally old ones, a random choice.
    shuffled = rng.permutation(len(rows))
    stalest = shuffled[np.argsort(before.measured_at[rows[shuffled]], kind="stable")]
    rounds = [len(part) for part in np.array_split(np.arange(budget - budget // (_ROUNDS + 1)), _ROUNDS)]
    measure(stalest[: budget // (_ROUNDS + 1)])
    # In every round the prediction is fitted to all that was measured before this lot, and the longest by it are measured.
    old = before.squares[rows]
    for size in rounds:
        unknown = np.flatnonzero(~is_measured)
        predicted = _predict_lengths(old, squares[rows], classes, is_measured)
        measure(unknown[choose(predicted[unknown], rows[unknown], size)])
    return rows[is_measured], RememberedLengths(squares, measured_at)


def lengths_of(squares: Squares) -> Lengths:
    """Returns the length of each gradient from its squared lengths by stretch."""
    return np.sqrt(squares.sum(axis=1, dtype=np.float64)).astype(np.float32)


def _predict_lengths(old: Squares, new: Squares, classes: Rows, is_measured: NDArray[np.bool_]) -> Lengths:
    """Returns what the lengths of all candidates are now, predicted from those of the candidates that were measured."""
    log_old = 0.5 * np.log(np.maximum(old.sum(axis=1, dtype=np.float64), _TINY))
    predicted = log_old.copy()
    for kind in np.unique(classes):
        members = np.flatnonzero(classes == kind)
        seen = members[is_measured[members]]
        if not len(seen):
            continue
        # z: the old log squared lengths of the class, standardised; a stretch in which all are alike says nothing.
        logs = np.log(np.maximum(old[members], _TINY), dtype=np.float64)
        deviation = logs.std(axis=0)
        z = (logs - logs.mean(axis=0)) / np.where(deviation > 0, deviation, 1.0)
        z = np.column_stack([np.ones(len(members)), z])
        # w = (ZᵀZ + λ1)⁻¹ Zᵀ log(new / old) over the measured records of the class.
        fitted = z[is_measured[members]]
        target = 0.5 * np.log(np.maximum(new[seen].sum(axis=1, dtype=np.float64), _TINY)) - log_old[seen]
        w = np.linalg.solve(fitted.T @ fitted + _PENALTY * np.eye(z.shape[1]), fitted.T @ target)
        # A linear fit may run away outside of what was seen, so no record is said to grow more than any that was measured.
        predicted[members] += np.clip(z @ w, target.min(), target.max())
    return np.exp(predicted).astype(np.float32)
