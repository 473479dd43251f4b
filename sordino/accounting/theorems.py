"""Composition theorems as plain functions of (ε, δ), for pen-and-paper reasoning and for teaching.

Dwork & Roth 2014; Dwork, Rothblum & Vadhan 2010; Kairouz, Oh & Viswanath 2015; Balle, Barthe & Gaboardi 2018.

**Privacy:** each function states its theorem; all are upper bounds. Sampling amplifies to log(1 + q(e^ε − 1)), not to
qε, which is smaller and wrong.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import gammaln, logsumexp

from sordino import validate

Guarantee = tuple[float, float]

_OVERFLOW = 700.0  # exponentials of more are no floats


def sequential(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Returns (Σ ε, Σ δ), the cost of several releases on the same data by the textbook theorem.

    >>> sequential([(1.0, 1e-6), (0.5, 0.0)])
    (1.5, 1e-06)
    """
    pairs = _require_guarantees(guarantees)
    return math.fsum(e for e, _ in pairs), math.fsum(d for _, d in pairs)


def _require_guarantees(guarantees: Iterable[Guarantee]) -> list[Guarantee]:
    """Returns the guarantees (ε, δ) that a textbook theorem is given, as a list; refuses what is no list of pairs of
    numbers.
    """
    pairs = [
        tuple(validate.sequence("guarantees", pair, "pairs (epsilon, delta)"))
        for pair in validate.sequence("guarantees", guarantees, "pairs (epsilon, delta)")
    ]
    if any(len(pair) != 2 for pair in pairs):
        raise ValueError(f"guarantees={validate.shorten(pairs)}: must be pairs (epsilon, delta)")
    return [_require_guarantee(epsilon, delta) for epsilon, delta in pairs]


def _require_guarantee(epsilon: float, delta: float) -> Guarantee:
    """Returns the guarantee; refuses an ε below zero and a δ outside of [0, 1]."""
    return validate.non_negative("epsilon", epsilon), validate.probability("delta", delta)


def parallel(guarantees: Iterable[Guarantee]) -> Guarantee:
    """Returns (max ε, max δ), the cost by the textbook theorem of releases on disjoint parts of the data that are fixed
    in advance.

    >>> parallel([(1.0, 1e-6), (0.5, 0.0)])
    (1.0, 1e-06)
    """
    pairs = _require_guarantees(guarantees)
    return max((e for e, _ in pairs), default=0.0), max((d for _, d in pairs), default=0.0)


def advanced_drv(epsilon: float, delta: float, count: int, slack: float) -> Guarantee:
    """Returns the total (ε, δ) of k releases by the textbook theorem of Dwork, Rothblum & Vadhan (2010): ε√(2k
    ln(1/δ')) + kε(e^ε − 1) and kδ + δ'.

    Args:
        epsilon: of one release.
        delta: of one release.
        count: k, how many.
        slack: δ', what composition adds to δ.

    Returns:
        What all of them cost together.

    Examples:
        >>> advanced_drv(0.1, 0.0, 100, slack=1e-5)
        (5.8502350929445575, 1e-05)

    """
    spread, count = _spread(epsilon, count, slack)
    drift = count * epsilon * math.expm1(epsilon) if epsilon < _OVERFLOW else math.inf
    return spread + drift, count * validate.probability("delta", delta) + slack


def advanced_kov(epsilon: float, delta: float, count: int, slack: float) -> Guarantee:
    """Returns the total (ε, δ) of k releases by the textbook theorem of Kairouz, Oh & Viswanath (2015): ε√(2k ln(1/δ'))
    + kε(e^ε − 1)/(e^ε + 1) and kδ + δ' ≥ 1 − (1−δ)^k(1−δ').

    Args:
        epsilon: of one release.
        delta: of one release.
        count: k, how many.
        slack: δ', what composition adds to δ.

    Returns:
        What all of them cost together.

    Examples:
        >>> advanced_kov(0.1, 0.0, 100, slack=1e-5)
        (5.298109661766881, 1e-05)

    """
    spread, count = _spread(epsilon, count, slack)
    return spread + count * epsilon * math.tanh(epsilon / 2), count * validate.probability("delta", delta) + slack


def _spread(epsilon: float, count: int, slack: float) -> tuple[float, int]:
    """Returns ε√(2k ln(1/δ')), the term that the textbook theorems of advanced composition share, and the number k."""
    epsilon = validate.non_negative("epsilon", epsilon)
    count = validate.count("count", count)
    slack = validate.fraction("slack", slack)
    return epsilon * math.sqrt(2 * count * math.log(1 / slack)), count


def optimal_delta(epsilon: float, delta: float, count: int, total_epsilon: float) -> float:
    """Returns the exact δ at total_epsilon of k releases that are (ε, δ)-DP, by theorem 3.3 of Kairouz, Oh & Viswanath
    (2015).

    1 − (1−δ)^k (1 − Σ_l C(k,l) e^{lε}(1 − e^{t − (2l−k)ε})₊ / (1+e^ε)^k).

    Args:
        epsilon: of one release.
        delta: of one release.
        count: k, how many.
        total_epsilon: where δ is asked for.

    Returns:
        δ of all of them together.

    Examples:
        >>> f"{optimal_delta(0.1, 0.0, 100, total_epsilon=5.0):.2e}"
        '2.79e-07'

    """
    epsilon, delta = _require_guarantee(epsilon, delta)
    count = validate.count("count", count)
    total_epsilon = validate.non_negative("total_epsilon", total_epsilon)
    # The worst case of k releases is k randomised responses: `heads` of them came out one way, and the loss is (2·heads
    # − k)·ε.
    heads = np.arange(count + 1)
    loss = (2 * heads - count) * epsilon
    use = loss > total_epsilon
    inside = 0.0
    if use.any():
        # Binomial masses in logarithms; only outcomes whose loss exceeds total ε contribute, each with the share 1 −
        # e^{ε_total − loss}.
        log_choose = gammaln(count + 1) - gammaln(heads + 1) - gammaln(count - heads + 1)
        log_mass = log_choose + heads * epsilon - count * np.logaddexp(0.0, epsilon)
        inside = math.exp(float(logsumexp(log_mass[use] + np.log(-np.expm1(total_epsilon - loss[use])))))
    # The k chances δ of failing altogether are independent of these.
    return 1 - (1 - delta) ** count * (1 - inside) if delta else inside


def optimal(epsilon: float, delta: float, count: int, total_delta: float) -> float:
    """Returns the smallest total ε at total_delta by the optimal theorem, from above; infinite when kδ alone exceeds
    it.

    >>> round(optimal(0.1, 0.0, 100, 1e-6), 5)
    4.77457
    """
    total_delta = validate.fraction("total_delta", total_delta)
    epsilon, delta = _require_guarantee(epsilon, delta)
    count = validate.count("count", count)
    # δ falls as ε grows, so bisection finds the smallest ε; the upper end is returned, which is on the safe side.
    low, high = 0.0, count * epsilon
    if optimal_delta(epsilon, delta, count, high) > total_delta:
        return math.inf
    if optimal_delta(epsilon, delta, count, 0.0) <= total_delta:
        return 0.0
    for _ in range(200):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if optimal_delta(epsilon, delta, count, middle) > total_delta else (low, middle)
    return high


def group_privacy(epsilon: float, delta: float, size: int) -> Guarantee:
    """Returns (kε, δ(e^{kε} − 1)/(e^ε − 1)), the cost for a group of k records by the theorem of group privacy (Vadhan
    2017, lemma 2.2).

    >>> group_privacy(1.0, 0.0, 3)
    (3.0, 0.0)
    """
    size = validate.count("size", size)
    epsilon, delta = _require_guarantee(epsilon, delta)
    if delta == 0:
        return size * epsilon, 0.0
    if epsilon * size > _OVERFLOW:
        # (e^{kε} − 1)/(e^ε − 1) ≥ e^{(k−1)ε}: in logarithms, for the quotient overflows
        log_delta = math.log(delta) + (size - 1) * epsilon - math.log(-math.expm1(-epsilon))
        return size * epsilon, math.exp(min(log_delta, 0.0))
    factor = float(size) if epsilon == 0 else math.expm1(size * epsilon) / math.expm1(epsilon)
    return size * epsilon, min(1.0, delta * factor)


def amplify_by_sampling(epsilon: float, delta: float, rate: float) -> Guarantee:
    """Returns (log(1 + q(e^ε − 1)), qδ), by the theorem of amplification: sampling at `rate`, Poisson under add/remove
    or fixed-size under replace-one.

    >>> round(amplify_by_sampling(1.0, 0.0, 0.01)[0], 6)
    0.017037
    """
    rate = validate.rate("rate", rate)
    epsilon, delta = _require_guarantee(epsilon, delta)
    if epsilon > _OVERFLOW:
        return epsilon + math.log(rate) + math.log1p((1 - rate) / rate * math.exp(-epsilon)), rate * delta
    return math.log1p(rate * math.expm1(epsilon)), rate * delta


def post_processed(epsilon: float, delta: float) -> Guarantee:
    """Returns the guarantee unchanged, by the theorem of post-processing: it holds for whatever is computed from a
    release without the data.

    Args:
        epsilon: of the release.
        delta: of the release.

    Returns:
        The same.

    Examples:
        >>> post_processed(1.0, 1e-5)
        (1.0, 1e-05)

    """
    return _require_guarantee(epsilon, delta)
