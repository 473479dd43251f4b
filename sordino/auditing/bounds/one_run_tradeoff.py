"""Test of a run's own trade-off curve from one training run with canaries (f-DP).

The test is algorithm 3 of Mahloujifar, Melis & Chaudhuri (2024, arXiv:2410.22235).

With m canaries, r guesses, v right. Suppose that v or more are right with probability τ. Of the guesses that are right when
exactly i are, let a_i be the expected number over m summed from i upwards, and b_i the same of the wrong ones:

    a_v = τ v / m,  b_v = τ (r − v) / m
    b_i = max(b_{i+1}, f̄⁻¹(a_{i+1})),   a_i = a_{i+1} + i / (r − i) · (b_i − b_{i+1})        i = v − 1 … 0

If a_0 + b_0 > r/m there were more guesses than there are: no run with the curve f does so well with probability τ.

Privacy: none; a lower bound, and a small one proves nothing. It holds for any curve that the run is said to have: that of
its own event is sharper than the one (ε, δ) it is quoted at. Guesses are fixed beforehand, coins independent and fair.
"""

from __future__ import annotations

import math

from sordino.accounting import PLD
from sordino.auditing.bounds.one_run import check_counts
from sordino.auditing.bounds.tradeoff_tests import Inverse, LessNoisyFamily, inverse_of_gaussian

_SMALLEST = 1e-12
_BISECTIONS = 50
_LARGEST_MU = 64.0
_MOST = 512
"""Curves of a family, counted from the run's own."""


def contradicts(canaries: int, guesses: int, right: int, inverse: Inverse, error: float) -> bool:
    """Returns whether one run contradicts a trade-off curve: so many right guesses about canaries are rarer than
    `error` for every run with the curve.
    """
    check_counts(canaries, guesses, right)
    # The recursion of Mahloujifar et al.: how likely can so many right guesses be at most, going down one guess at a
    # time?
    hits, misses = error * right / canaries, error * (guesses - right) / canaries
    for i in range(right - 1, -1, -1):
        more = max(misses, inverse(min(1.0, hits)))
        if more == misses:  # nothing changes from here on
            break
        hits = min(1.0, hits + i / (guesses - i) * (more - misses))
        misses = more
    return hits + misses > guesses / canaries


def p_value(canaries: int, guesses: int, right: int, inverse: Inverse) -> float:
    """Returns the p-value of one run's guesses against a trade-off curve: no run with the curve has so many right with
    a larger probability.

    It has two digits and is rounded up.

    >>> p_value(1, 1, 1, inverse_of_gaussian(1.0))  # one canary, one guess: right with probability Φ(1/2) = 0.6915
    0.7
    """
    # Bisect over the logarithm of the error, and round the result up.
    low, high = _SMALLEST, 1.0
    if contradicts(canaries, guesses, right, inverse, low):
        return low
    for _ in range(_BISECTIONS):
        middle = (low * high) ** 0.5
        if high / low < 1.001:
            break
        # `high` is what the guesses contradict, so the p-value that is returned is never too small.
        low, high = (low, middle) if contradicts(canaries, guesses, right, inverse, middle) else (middle, high)
    return _round_up(high)


def mu_lower_bound(canaries: int, guesses: int, right: int, error: float = 0.05) -> float:
    """Returns a lower bound on μ from one run, if the run's trade-off curve is Gaussian; it is wrong with probability
    `error`.
    """
    # μ = 0 is tested first: if it explains the guesses, nothing is shown.
    low, high = 0.0, _LARGEST_MU
    if not contradicts(canaries, guesses, right, inverse_of_gaussian(0.0), error):
        return 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        wrong = contradicts(canaries, guesses, right, inverse_of_gaussian(middle), error)
        # `low` is always a μ that the guesses contradict, so it stays a lower bound wherever the search ends.
        low, high = (middle, high) if wrong else (low, middle)
    return low


def epsilon_lower_bound(
    canaries: int, guesses: int, right: int, family: LessNoisyFamily, delta: float, error: float = 0.05
) -> float:
    """Returns a lower bound on ε at δ from one run, if the run has the trade-off curve of its own event with some other
    amount of noise.
    """

    def is_contradicted(number: int) -> bool:
        return contradicts(canaries, guesses, right, family[number][1], error)

    # Look for a member of the family that is contradicted and one that is not, then bisect between them.
    low = -8  # twice the run's noise, and more while even that is not contradicted
    while not is_contradicted(low):
        low *= 2
        if low < -_MOST:
            return 0.0
    high = low + 1
    step = 1
    while high < _MOST and is_contradicted(high):
        low, high, step = high, high + step, 2 * step
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if is_contradicted(middle) else (low, middle)
    return PLD().epsilon(family[low][0], delta)


def _round_up(value: float) -> float:
    """Returns a value with two digits, rounded up."""
    place = 10.0 ** (math.floor(math.log10(value)) - 1)
    return min(1.0, float(f"{math.ceil(value / place - 1e-9) * place:.12g}"))
