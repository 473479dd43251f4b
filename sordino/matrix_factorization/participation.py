"""How far one record moves the output of a matrix mechanism, over all of its steps.

The mechanism releases C G + σ Z. A record that takes part in the steps of a pattern π moves C G by Σ_{j ∈ π} C[:, j] g_j
with ‖g_j‖ ≤ 1, so with X = CᵀC

    sens² = max over patterns π of Σ_{i, j ∈ π} |X_ij|

which is attained by equal g_j where X ≥ 0, and is an upper bound where C has both signs: there the sum of X_ij itself
would be too small.

Three kinds of patterns are covered:
    fixed order        {j, j + b, j + 2b, …}: an epoch has b steps and every epoch has the same order
    min separation     any pattern with gaps of at least b and at most k steps (Choquette-Choo et al. 2023,
                       arXiv:2306.08153)
    cyclic Poisson     a random part of {j, j + b, …}; priced column by column, see `events.CyclicPoisson`

For a Toeplitz C with non-negative, non-increasing coefficients the worst pattern with gaps of at least b is {0, b, 2b, …}
(Kalinin & Lampert 2024, arXiv:2405.13763, theorem 2).

All results are rounded outward: they are at least the exact value, and larger by less than 1e-9 of it.
"""

from __future__ import annotations

import math
from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from sordino.matrix_factorization.toeplitz import Series, toeplitz_matrix

Matrix = NDArray[np.float64]

_UNIT = 2.0**-52
_MOST_PATTERNS = 200_000
"""Patterns that are enumerated where no theorem says which of them is the worst."""


class NoSensitivity(ValueError):
    """Raised where no theorem and no enumeration gives the sensitivity of a matrix for its patterns."""


def round_up(value: float, operations: int) -> float:
    """Returns the value raised by what so many roundings of non-negative terms may have taken from it."""
    return value * (1 + 4 * max(1, operations) * _UNIT)


def is_non_increasing(coefficients: Series) -> bool:
    """Returns whether no coefficient is negative and none is larger than the one before it."""
    return bool((coefficients >= 0).all() and (np.diff(coefficients) <= 0).all())


def column_norms(coefficients: Series, steps: int) -> Series:
    """Returns ‖C[:, j]‖ for every column of a Toeplitz matrix, how far one participation moves the output; column j has
    only steps − j entries.
    """
    held = np.zeros(steps)
    held[: min(steps, len(coefficients))] = coefficients[:steps]
    return np.sqrt(np.cumsum(held**2))[::-1] * (1 + 4 * steps * _UNIT)


def largest_participations(steps: int, separation: int) -> int:
    """Returns how often a record can take part in so many steps with gaps of at least `separation`."""
    return -(-steps // separation)


def toeplitz_sensitivity(coefficients: Series, steps: int, separation: int, participations: int | None = None) -> float:
    """Returns the sensitivity of a Toeplitz matrix for every pattern of participation with gaps of at least
    `separation`.

    It covers a fixed order too, which is one of these patterns, and is exact for it: the worst pattern {0, b, 2b, …} is
    that of the first batch.

    Raises:
        NoSensitivity: if the coefficients rise, or if one is negative, and the matrix is too large to try all patterns.

    """
    most = largest_participations(steps, separation)
    count = most if participations is None else min(most, participations)
    held = np.zeros(steps)
    held[: min(steps, len(coefficients))] = coefficients[:steps]
    if is_non_increasing(held):
        # ‖Σ_r C[:, r b]‖ for r < k: every term is non-negative.
        moved = np.zeros(steps)
        for r in range(count):
            moved[r * separation :] += held[: steps - r * separation]
        return round_up(math.sqrt(math.fsum(moved**2)), steps + count)
    if len(coefficients) <= separation:
        # Columns at a distance of b or more have no row in common, so their squared norms add up.
        return _by_columns(column_norms(held, steps) ** 2, separation, count)
    return matrix_sensitivity(toeplitz_matrix(held, steps), separation, count)


def matrix_sensitivity(encoder: Matrix, separation: int, participations: int | None = None) -> float:
    """Returns the sensitivity of any matrix C for every pattern of participation with gaps of at least `separation`.

    Banded matrices, of which columns at a distance of `separation` have no row in common, are solved by a dynamic
    programme. Others are enumerated.

    Raises:
        NoSensitivity: if the matrix is not banded and has too many patterns.

    """
    # A record takes part at most once in `separation` steps.
    steps = encoder.shape[1]
    most = largest_participations(steps, separation)
    count = most if participations is None else min(most, participations)
    # Absolute values make every pattern of signs harmless: the worst contribution is the sum of |Gram| over the
    # pattern.
    gram = absolute_gram(encoder)
    lag = np.abs(np.subtract.outer(np.arange(steps), np.arange(steps)))
    # Columns that do not overlap within reach have independent contributions, and dynamic programming finds the worst
    # pattern exactly.
    if not gram[lag >= separation].any():
        return _by_columns(np.diagonal(gram), separation, count)
    # Otherwise all patterns are tried, if there are few enough.
    if _number_of_patterns(steps, separation, count) > _MOST_PATTERNS:
        raise NoSensitivity(
            f"a matrix of {steps} steps whose columns overlap beyond {separation} steps has too many patterns to try, and "
            "no theorem gives its sensitivity.\nUse at most as many bands as steps between two uses of a record, or "
            "coefficients that do not rise."
        )
    return enumerated_sensitivity(encoder, separation, count)


def fixed_order_sensitivity(encoder: Matrix, separation: int) -> float:
    """Returns the sensitivity of any matrix C when a record's participation is in steps j, j + b, j + 2b, … and no
    others.
    """
    gram = absolute_gram(encoder)
    steps = encoder.shape[1]
    # A fixed order has only `separation` patterns, one for each first step.
    worst = max(
        math.fsum(gram[np.ix_(pattern, pattern)].ravel())
        for pattern in (np.arange(first, steps, separation) for first in range(min(separation, steps)))
    )
    return round_up(math.sqrt(worst), sum(encoder.shape))


def enumerated_sensitivity(encoder: Matrix, separation: int, participations: int) -> float:
    """Returns the sensitivity of a matrix by trying every pattern of participation: slow and obviously right, the
    oracle of the other functions.
    """
    gram = absolute_gram(encoder)
    steps, worst = encoder.shape[1], 0.0
    for count in range(1, participations + 1):
        # Gaps of at least b: choose freely among fewer places, then put b − 1 empty ones between two chosen ones.
        free = steps - (count - 1) * (separation - 1)
        for chosen in combinations(range(free), count):
            pattern = [place + i * (separation - 1) for i, place in enumerate(chosen)]
            worst = max(worst, math.fsum(gram[np.ix_(pattern, pattern)].ravel()))
    return round_up(math.sqrt(worst), sum(encoder.shape))


def absolute_gram(encoder: Matrix) -> Matrix:
    """Returns |CᵀC|."""
    return np.abs(encoder.T @ encoder)


def _number_of_patterns(steps: int, separation: int, participations: int) -> int:
    """Returns how many patterns with gaps of at least `separation` there are."""
    return sum(math.comb(max(0, steps - (k - 1) * (separation - 1)), k) for k in range(1, participations + 1))


def _by_columns(squared_norms: Series, separation: int, participations: int) -> float:
    """Returns √ of the largest sum of squared column norms over patterns of participation with gaps of at least
    `separation`.

    best[k][j] = max(best[k][j + 1], squared_norms[j] + best[k − 1][j + b]), from the last column to the first.
    """
    steps = len(squared_norms)
    best = np.zeros(steps + separation)
    # best[t] is the largest sum from step t on; each round allows one more participation.
    for _ in range(participations):
        taken = np.zeros(steps + separation)
        taken[:steps] = squared_norms + best[separation : separation + steps]
        best = np.maximum.accumulate(taken[::-1])[::-1]
    return round_up(math.sqrt(float(best[0])), steps + participations)
