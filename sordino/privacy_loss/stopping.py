"""Hyper-parameter search with a random number of runs: the Rényi curve of releasing the best run only.

Papernot & Steinke 2022, theorems 2 and 6; Liu & Talwar 2019 for pure ε. With ε(λ) the curve of one run:

    K ~ TruncNegBin(η, γ)   ε(λ) + (1+η)·min_λ̂ [(1 − 1/λ̂)ε(λ̂) + ln(1/γ)/λ̂] + ln E[K]/(λ−1)
    K ~ Poisson(m)          ε(λ) + m·δ̂ + ln m/(λ−1), one run being (ln(1 + 1/(λ−1)), δ̂)-DP

**Privacy:** only the winner is released, and the score by which it won is part of each run. K is secret.
"""

from __future__ import annotations

import math

import numpy as np

from sordino import validate
from sordino.privacy_loss.pairs import Array


def expected_runs(shape: float, stop: float) -> float:
    """Returns the expected number of runs E[K] of a search whose random stopping makes K truncated negative binomial.

    >>> round(expected_runs(1.0, 0.01), 6)
    100.0
    """
    shape, stop = validate.number("shape", shape), validate.fraction("stop", stop)
    if not -1 < shape < math.inf:
        raise ValueError(f"shape={shape}: must be > -1 and finite")
    if shape == 0:
        return (1 / stop - 1) / math.log(1 / stop)
    return shape * (1 - stop) / (stop * -math.expm1(shape * math.log(stop)))


def negative_binomial_curve(orders: Array, curve: Array, shape: float, stop: float) -> Array:
    """Returns the Rényi curve of the best of K runs, where random stopping makes K truncated negative binomial."""
    finite = np.isfinite(curve)
    if not finite.any():
        return np.full_like(curve, math.inf)
    extra = float(((1 - 1 / orders[finite]) * curve[finite] + math.log(1 / stop) / orders[finite]).min())
    result = curve + (1 + shape) * extra + math.log(expected_runs(shape, stop)) / (orders - 1)
    return np.asarray(result)


def poisson_curve(orders: Array, curve: Array, mean: float) -> Array:
    """Returns the Rényi curve of the best of K runs, where random stopping makes K Poisson, so that there may be no run
    at all.
    """
    result = []
    for order in orders:
        epsilon = math.log1p(1 / (order - 1))
        result.append(mean * curve_delta(orders, curve, epsilon) + math.log(mean) / (order - 1))
    # when ln m is negative, monotonicity in the order must be kept by hand
    return np.asarray(np.maximum(curve + np.array(result), 0.0))


def curve_delta(orders: Array, curve: Array, epsilon: float) -> float:
    """Returns δ at ε from the Rényi curve of a randomly stopped search: min exp((α−1)(ε(α) − ε + log(1−1/α)) − log α)
    (Canonne, Kamath & Steinke 2020).
    """
    with np.errstate(over="ignore", invalid="ignore"):
        exponent = (orders - 1) * (curve - epsilon + np.log1p(-1 / orders)) - np.log(orders)
    exponent = exponent[~np.isnan(exponent)]
    return min(1.0, math.exp(min(0.0, float(exponent.min())))) if len(exponent) else 1.0


def curve_epsilon(orders: Array, curve: Array, delta: float) -> float:
    """Returns ε at δ from the Rényi curve of a randomly stopped search: min ε(α) + log(1−1/α) − (log δ + log α)/(α−1),
    never below 0.
    """
    if float(curve.max()) <= 0:
        return 0.0
    values = curve + np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(values.min()))


def liu_talwar(epsilon: float) -> float:
    """Returns 3ε, the cost of the best run of a search with random stopping after a geometric number of runs, each
    purely ε-DP (Liu & Talwar 2019, theorem 3.4).

    >>> liu_talwar(0.5)
    1.5
    """
    return 3 * validate.non_negative("epsilon", epsilon)
