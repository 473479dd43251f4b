"""Trade-off curves (f-DP): the smallest type II error of any attack at each type I error.

Dong, Roth & Su 2019. From a profile: f(α) = max over ε of max(0, 1 − δ(ε) − e^ε α, e^{−ε}(1 − δ(ε) − α)).

**Privacy:** computed from an upper bound on the profile, so no attack does better than the curve shown; the finitely
many ε used only lower it, i.e. err on the side of caution.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr, ndtri

from sordino import validate
from sordino.accounting.accountant import Accountant
from sordino.accounting.accountants.pld import PLD
from sordino.events import Event, is_private
from sordino.events.base import require_event
from sordino.privacy_loss.gaussian import gaussian_mu
from sordino.privacy_loss.pairs import Array

_POINTS = 60
_LEAST_DELTA = 1e-10
_LARGEST_EXPONENT = 700.0  # beyond it an exponential overflows


def epsilon_delta_tradeoff(epsilon: float, delta: float, alpha: float | Array) -> Array:
    """Returns the trade-off curve of (ε, δ)-DP, f_{ε,δ}(α) = max(0, 1 − δ − e^ε α, e^{−ε}(1 − δ − α)).

    >>> round(float(epsilon_delta_tradeoff(1.0, 1e-5, 0.05)), 6)
    0.864076
    """
    epsilon, delta = validate.non_negative("epsilon", epsilon), validate.probability("delta", delta)
    alpha = _error_rates(alpha)
    with np.errstate(divide="ignore"):
        # e^ε α as one exponential: e^ε alone overflows beyond 709
        grown = np.exp(np.minimum(epsilon + np.log(alpha), _LARGEST_EXPONENT))
    return np.asarray(np.maximum(0.0, np.maximum(1 - delta - grown, math.exp(-epsilon) * (1 - delta - alpha))))


def _error_rates(alpha: float | Array) -> Array:
    """Returns the type I error rates of a trade-off curve as an array; refuses what is not a number from 0 to 1."""
    if isinstance(alpha, bool | str | bytes):
        raise TypeError(f"alpha={alpha!r}: must be a number or an array of numbers")
    rates = np.asarray(alpha, dtype=float)
    if not np.all((rates >= 0) & (rates <= 1)):
        raise ValueError("alpha: must lie in [0, 1]")
    return rates


def gaussian_tradeoff(mu: float, alpha: float | Array) -> Array:
    """Returns the Gaussian trade-off curve G_μ(α) = Φ(Φ⁻¹(1−α) − μ).

    Args:
        mu: the parameter of Gaussian differential privacy.
        alpha: false-positive rates of a test for one record.

    Returns:
        The least false-negative rates that any such test can have.

    Examples:
        >>> round(float(gaussian_tradeoff(1.0, 0.05)), 4)
        0.7405

    """
    mu, alpha = validate.non_negative("mu", mu), _error_rates(alpha)
    return np.asarray(ndtr(ndtri(1 - alpha) - mu))


def subsampled_tradeoff(mu: float, rate: float, alpha: float | Array) -> Array:
    """Returns the trade-off curve C_q(G_μ) of one Poisson-sampled Gaussian release: the double conjugate of min(f_q,
    f_q⁻¹).

    Below the fixed-slope point the curve is f_q, then the line of slope −1, then f_q⁻¹.

    Args:
        mu: of the release without sampling.
        rate: of the Poisson draw.
        alpha: false-positive rates.

    Returns:
        The least false-negative rates.

    Examples:
        >>> round(float(subsampled_tradeoff(1.0, 0.1, 0.05)), 4)
        0.929

    """
    mu, rate, alpha = validate.non_negative("mu", mu), validate.rate("rate", rate), _error_rates(alpha)
    if rate == 1.0:
        return gaussian_tradeoff(mu, alpha)
    # f_q has slope −1 where G_μ has: α* = Φ(−μ/2); there f_q = q·α* + (1−q)(1−α*)
    corner = float(ndtr(-mu / 2))
    level = rate * corner + (1 - rate) * (1 - corner)
    # Left of the corner the curve is f_q itself, then a line of slope −1, and right of it f_q⁻¹, by symmetry.
    left = rate * gaussian_tradeoff(mu, np.minimum(alpha, corner)) + (1 - rate) * (1 - np.minimum(alpha, corner))
    line = np.maximum(corner + level - alpha, 0.0)
    low, high = np.zeros_like(alpha), np.full_like(alpha, corner)
    for _ in range(80):  # f_q⁻¹ by bisection: f_q falls
        middle = (low + high) / 2
        above = rate * gaussian_tradeoff(mu, middle) + (1 - rate) * (1 - middle) > alpha
        low, high = np.where(above, middle, low), np.where(above, high, middle)
    return np.where(alpha <= corner, left, np.where(alpha <= level, line, low))


@dataclass(frozen=True, eq=False)
class Tradeoff:
    """A trade-off curve: call it with type I errors to get the smallest type II errors.

    Args:
        epsilons: points of the privacy profile,
        deltas: and δ there.

    Examples:
        >>> from sordino.events import Gaussian
        >>> curve = tradeoff(Gaussian(1.0))
        >>> round(float(curve(0.05)), 3), round(curve.mu, 2)
        (0.74, 1.0)

    """

    epsilons: Array
    deltas: Array

    def __post_init__(self) -> None:
        """Refuses lists of different lengths, and points that are no (ε, δ)."""
        epsilons, deltas = np.atleast_1d(self.epsilons), np.atleast_1d(self.deltas)
        if epsilons.shape != deltas.shape or epsilons.ndim != 1 or not len(epsilons):
            raise ValueError("epsilons, deltas: must be lists of one length, with at least one point")
        for epsilon, delta in zip(epsilons, deltas, strict=True):
            validate.non_negative("epsilons", epsilon)
            validate.probability("deltas", delta)

    def __call__(self, alpha: float | Array) -> Array:
        """Returns β(α), the smallest false-negative rate of any attack with false-positive rate α."""
        alpha = _error_rates(alpha)
        curves = [epsilon_delta_tradeoff(e, d, alpha) for e, d in zip(self.epsilons, self.deltas, strict=True)]
        return np.asarray(np.max(curves, axis=0))

    def power(self, alpha: float | Array) -> Array:
        """Returns the largest true-positive rate of any attack at false-positive rate α."""
        return 1 - self(alpha)

    @property
    def mu(self) -> float:
        """The smallest μ whose Gaussian trade-off curve lies below the event's trade-off curve at every ε computed: a
        Gaussian-DP parameter.
        """
        largest_mu = 0.0
        for epsilon, delta in zip(self.epsilons, self.deltas, strict=True):
            if delta >= 1:
                return math.inf
            if delta > _LEAST_DELTA:
                largest_mu = max(largest_mu, gaussian_mu(float(epsilon), float(delta)))
        return largest_mu


def tradeoff(event: Event, accountant: Accountant | None = None, points: int = _POINTS) -> Tradeoff:
    """Returns the trade-off curve of an event.

    >>> from sordino.events import Gaussian
    >>> round(float(tradeoff(Gaussian(1.0))(0.05)), 2)
    0.74
    """
    chosen = PLD(tolerance=3e-4) if accountant is None else accountant
    points = validate.count("points", points, least=2, most=10**6)
    event = require_event(event)
    if not is_private(event):
        return Tradeoff(np.array([0.0]), np.array([1.0]))
    # The curve is the upper envelope of the lines of all (ε, δ); ε runs up to where δ is negligible.
    largest_epsilon = chosen.epsilon(event, _LEAST_DELTA)
    if math.isinf(largest_epsilon):
        largest_epsilon = chosen.epsilon(event, 1e-5)
    if math.isinf(largest_epsilon):
        # nothing is known about the event at any ε, so nothing is promised about an attack
        return Tradeoff(np.array([0.0]), np.array([1.0]))
    # More points at small ε, where the curve bends most.
    epsilons = np.concatenate(([0.0], np.linspace(0.0, 1.0, points)[1:] ** 1.5 * max(largest_epsilon, 1e-6)))
    # δ falls with ε. Small errors of an accountant must not make it rise, and the smaller value is also true at the
    # larger ε.
    deltas = np.array([chosen.delta(event, float(epsilon)) for epsilon in epsilons])
    return Tradeoff(epsilons, np.minimum.accumulate(deltas))
