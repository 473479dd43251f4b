"""E-values: evidence of many tests that can be added up under one error budget.

See Vovk & Wang (2021, arXiv:1912.06116) and Grünwald, de Heide & Koolen (2019, arXiv:1906.07801).

An e-value is a number whose mean is at most 1 if all is as claimed. By Markov's inequality it exceeds 1/α with a chance of
at most α; the mean of several is one again, whatever they have to do with each other. So one budget α serves any number of
tests: the alarm is raised if the mean exceeds 1/α.

    likelihood ratio    E = Σ_s w_s L(z; s) / L(z; claimed)   of noise with another scale, or with correlation
    from a p-value      E = κ p^(κ−1)                         for counts, whose p-values are exact

All are logarithms: those of wrong noise on a million coordinates do not fit in a number.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp
from scipy.stats import binom

Values = NDArray[np.float64]

SCALES = (0.01, 0.1, 0.5, 0.7, 0.9, 0.95, 0.98, 0.99, 0.995, 1.005, 1.01, 1.02, 1.05, 1.1, 1.4, 2.0, 10.0, 100.0)
"""Scales of noise, over the claimed one, that the test looks for."""
CORRELATIONS = (0.01, 0.03, 0.1, 0.3, 0.7, 0.99, 0.999999)
_KAPPA = 0.1


def log_e_of_normal_scale(z: Values) -> float:
    """Returns the log e-value against independent N(0, 1) values, for noise of any other scale.

    >>> log_e_of_normal_scale(np.zeros(10)) > 20
    True
    """
    squares = float(np.square(z).sum())
    # ln Π N(z; 0, s²) / N(z; 0, 1): the likelihood ratio depends on the values by Σ z² alone.
    return _log_mixture([-len(z) * math.log(s) + squares / 2 * (1 - s**-2) for s in SCALES])


def log_e_of_laplace_scale(z: Values) -> float:
    """Returns the log e-value against independent Laplace values of scale 1, for noise of any other scale."""
    total = float(np.abs(z).sum())
    return _log_mixture([-len(z) * math.log(s) + total * (1 - 1 / s) for s in SCALES])


def log_e_of_normal_pairs(x: Values, y: Values) -> float:
    """Returns the log e-value against pairs of independent N(0, 1) values, for correlation of either sign."""
    # The likelihood ratio of a correlation ρ against independence, averaged over a few ρ: a mixture of e-values is one.
    n, xx, yy, xy = len(x), float(x @ x), float(y @ y), float(x @ y)
    logs = []
    for size in CORRELATIONS:
        for rho in (size, -size):
            unexplained = 1 - rho * rho
            logs.append(-n / 2 * math.log(unexplained) - (xx - 2 * rho * xy + yy) / (2 * unexplained) + (xx + yy) / 2)
    return _log_mixture(logs)


def log_e_of_count(count: int, trials: int, rate: float) -> float:
    """Returns the log e-value against a count that is Binomial(trials, rate), too small or too large.

    >>> log_e_of_count(50, 100, 0.5) < 0 < log_e_of_count(90, 100, 0.5)
    True
    """
    # Twice the smaller of the two tails, both of which include the count itself, is a p-value for either side.
    below, above = float(binom.cdf(count, trials, rate)), float(binom.sf(count - 1, trials, rate))
    return log_e_of_p_value(min(1.0, 2 * min(below, above)))


def log_e_of_p_value(p: float) -> float:
    """Returns the log e-value of a p-value."""
    return math.inf if p <= 0 else math.log(_KAPPA) + (_KAPPA - 1) * math.log(p)


def log_mean(logs: Iterable[float]) -> float:
    """Returns the log of the mean of e-values, given by their logs; −∞ for none."""
    values = list(logs)
    if not values:
        return -math.inf
    return math.inf if math.inf in values else float(logsumexp(values) - math.log(len(values)))


def _log_mixture(logs: Sequence[float]) -> float:
    """Returns the log e-value of a mixture: the log of the mean of likelihood ratios, given by their logs."""
    value = float(logsumexp(logs) - math.log(len(logs)))
    # Noise as claimed is always finite: values that are not a number are full evidence against it.
    return math.inf if math.isnan(value) else value
