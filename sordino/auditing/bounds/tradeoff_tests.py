"""Trade-off curves for the one-run test: the least false positives at a share y of true ones.

    f̄⁻¹(y) = f(1 − y)     for a symmetric curve f: an attack that finds a share y has false positives of at least this

Of a run's own curve, a maximum of lines below the exact one, so that the test errs on the side of the run.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TypeAlias

import numpy as np
from scipy.special import ndtr, ndtri

from sordino.accounting.tradeoff import Tradeoff, tradeoff
from sordino.events import Event

Inverse: TypeAlias = Callable[[float], float]


def inverse_of_gaussian(mu: float) -> Inverse:
    """Returns the inverse Φ(Φ⁻¹(y) − μ) of the Gaussian trade-off curve G_μ, as trade-off tests ask for it.

    >>> round(inverse_of_gaussian(1.0)(0.5), 4)
    0.1587
    """
    return lambda y: float(ndtr(ndtri(y) - mu))


def inverse_of_curve(curve: Tradeoff) -> Inverse:
    """Returns the inverse of a run's own trade-off curve, as trade-off tests ask for it."""
    # The curve is the upper envelope of lines of slope −e^ε and −e^{−ε}; its inverse is the envelope of theirs.
    rise = np.exp(curve.epsilons)
    kept = 1 - curve.deltas

    def inverse(y: float) -> float:
        steep = kept - rise * (1 - y)
        flat = (y - curve.deltas) / rise
        return max(0.0, float(steep.max()), float(flat.max()))

    return inverse


_STEPS = 8
"""Curves per halving of the noise."""
_POINTS = 25
"""Points of each curve: fewer lie lower, so a bound found with them is a little smaller."""


class LessNoisyFamily:
    """A run's own event with less and less noise: the family in which a lower bound is looked for."""

    def __init__(self, event: Event) -> None:
        self.event = event
        self._made: dict[int, tuple[Event, Inverse]] = {}

    def __getitem__(self, number: int) -> tuple[Event, Inverse]:
        """Returns event and curve with 2^(−number/8) of the run's noise; negative numbers have more of it."""
        if number not in self._made:
            event = self.event.scale_noise(self.noise_factor(number))
            self._made[number] = event, inverse_of_curve(tradeoff(event, points=_POINTS))
        return self._made[number]

    @staticmethod
    def noise_factor(number: int) -> float:
        """Returns the factor of the noise for one member of the family of trade-off curves that tests try.

        >>> LessNoisyFamily.noise_factor(8)
        0.5
        """
        return math.pow(2.0, -number / _STEPS)
