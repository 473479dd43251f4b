"""Exact confidence bounds on a rate (Clopper & Pearson 1934).

    upper(k, n, α) = the p at which k or fewer of n have probability α = BetaInv(1 − α; k + 1, n − k)

Privacy: none; these are statements about counts.
"""

from __future__ import annotations

import math

from scipy.stats import beta, binom

from sordino import validate


def upper_bound(count: int, trials: int, error: float) -> float:
    """Returns an exact upper confidence bound on a binomial rate after `count` of `trials`; it is wrong with
    probability `error`.

    >>> round(upper_bound(0, 100, 0.05), 6) == round(1 - 0.05 ** (1 / 100), 6)
    True
    """
    _check_counts(count, trials, error)
    return 1.0 if count == trials else float(beta.ppf(1 - error, count + 1, trials - count))


def lower_bound(count: int, trials: int, error: float) -> float:
    """Returns a lower confidence bound on a rate; it is wrong with probability `error`."""
    return 1 - upper_bound(trials - count, trials, error)


def tail_probability(count: int, trials: int, rate: float) -> float:
    """Returns the binomial tail P[W ≥ count], W ~ Binomial(trials, rate), to full relative precision.

    >>> tail_probability(2, 2, 0.5)
    0.25
    """
    return 1.0 if count <= 0 else float(binom.sf(count - 1, trials, rate))


def _check_counts(count: int, trials: int, error: float) -> None:
    """Refuses a count, a number of trials or an error that a binomial confidence bound cannot have."""
    validate.count("trials", trials)
    if not 0 <= count <= trials:
        raise ValueError(f"count={count}: must lie in 0 … trials={trials}")
    if not 0 < error < 1 or math.isnan(error):
        raise ValueError(f"error={error}: must lie in (0, 1); 0.05 is a confidence of 95 %")
