"""Lower bound on (ε, δ) from one training run with m canaries (Steinke et al. 2023).

The bound is theorem 5.2 of Steinke, Nasr & Jagielski (2023, arXiv:2305.08846). Each canary is in the run by a fair
coin.

Of r guesses v are right. If the run is (ε, δ)-DP, with p = e^ε/(1 + e^ε) and W ~ Binomial(r, p),

    P[v or more right] ≤ P[W ≥ v] + 2 m δ · max_{1 ≤ i ≤ v} (P[W ≥ v − i] − P[W ≥ v]) / i

Privacy: none; a lower bound, and a small one proves nothing. How many are guessed at must be fixed before the coins are
looked at; the coins must be independent and fair.
"""

from __future__ import annotations

import numpy as np
from scipy.special import expit
from scipy.stats import binom

from sordino import validate
from sordino.auditing.bounds import binomial

_EXACT = 1e-9


def largest_probability(canaries: int, guesses: int, right: int, epsilon: float, delta: float) -> float:
    """Returns the largest probability that one (ε, δ)-DP run gives for so many right guesses about canaries or more."""
    check_counts(canaries, guesses, right)
    # Under ε-DP each guess is right with probability at most e^ε / (1 + e^ε), whatever the others are.
    p = float(expit(validate.non_negative("epsilon", epsilon)))
    tail = binomial.tail_probability(right, guesses, p)
    if delta == 0 or right == 0:
        return min(1.0, tail)
    # With δ > 0, some probability can be moved from fewer to more right guesses; the steepest slope bounds by how much.
    i = np.arange(1, right + 1)
    steepest = float(np.max((binom.sf(right - i - 1, guesses, p) - tail) / i))
    return min(1.0, tail + 2 * canaries * delta * steepest)


def epsilon_lower_bound(canaries: int, guesses: int, right: int, delta: float, error: float = 0.05) -> float:
    """Returns a lower bound on ε at δ from one run with canaries; it is wrong with probability `error`.

    >>> round(epsilon_lower_bound(100, 100, 100, 0.0), 4)  # p^100 = 0.05
    3.493
    """
    # Even ε = 0 explains the guesses: nothing is shown.
    check_counts(canaries, guesses, right)
    if guesses == 0 or largest_probability(canaries, guesses, right, 0.0, delta) > error:
        return 0.0
    # Double until the bound is passed, then bisect.
    low, high = 0.0, 1.0
    while largest_probability(canaries, guesses, right, high, delta) <= error:
        low, high = high, 2 * high
    while high - low > _EXACT:
        middle = (low + high) / 2
        below = largest_probability(canaries, guesses, right, middle, delta) <= error
        low, high = (middle, high) if below else (low, middle)
    return low


def check_counts(canaries: int, guesses: int, right: int) -> None:
    """Refuses counts of canaries and guesses that a bound from one run cannot be computed from."""
    validate.count("canaries", canaries)
    if not 0 <= right <= guesses <= canaries:
        raise ValueError(f"right={right}, guesses={guesses}: need 0 <= right <= guesses <= canaries={canaries}")


def largest_provable_epsilon(guesses: int, error: float = 0.05) -> float:
    """Returns the largest lower bound on ε, at δ = 0, that one run can show by so many guesses, all of them right.

    >>> round(largest_provable_epsilon(1000), 2)  # about ln(1000 / 3)
    5.81
    """
    return epsilon_lower_bound(guesses, guesses, guesses, 0.0, error)
