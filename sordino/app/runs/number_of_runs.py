"""The number of trials of a search: random and secret; only its distribution is known.

    NegativeBinomial(10.0)     geometric with mean 10; shape 0 is logarithmic, lower in price, heavier in the tail
    PoissonNumber(10.0)        close to its mean, and may be none at all

Papernot & Steinke 2022. The number must not depend on the data, nor on who is impatient: it is a function of the search's
key, so a search that was killed goes on with the number it had.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from scipy.optimize import brentq

from sordino import validate
from sordino.events import Event, TuneNegativeBinomial, TunePoisson
from sordino.privacy_loss.stopping import expected_runs
from sordino.rng.streams import Rng

_MOST_TRIALS = 1_000_000
"""Runs; beyond it the law has no mass that a double can hold."""


class TrialCount(Protocol):
    """The distribution of the number of runs."""

    def best_run_event(self, run: Event) -> Event:
        """Returns the event of releasing the best of a random number of runs."""
        ...

    def draw(self, rng: Rng) -> int:
        """Draws the number from a random stream."""
        ...


@dataclass(frozen=True)
class NegativeBinomial:
    """Truncated negative binomial, at least one run.

    >>> NegativeBinomial(10.0).stopping_probability
    0.1
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if validate.number("mean", self.mean) <= 1:
            raise ValueError(f"runs={self.mean:g}: must be more than 1, the mean of a number that is at least 1")
        if not -1 < validate.number("shape", self.shape) < math.inf:
            raise ValueError(f"shape={self.shape:g}: must be > -1 and finite")

    @property
    def stopping_probability(self) -> float:
        """γ, the parameter that gives the mean."""
        if self.shape == 1:
            return 1 / self.mean
        return float(brentq(lambda gamma: expected_runs(self.shape, gamma) - self.mean, 1e-12, 1 - 1e-12, xtol=1e-15))

    def best_run_event(self, run: Event) -> Event:
        """Returns the event of releasing the best run."""
        return TuneNegativeBinomial(run, self.shape, self.stopping_probability)

    def draw(self, rng: Rng) -> int:
        """Draws the number by inverting the distribution function."""
        gamma, eta = self.stopping_probability, self.shape
        first = (
            (1 - gamma) / math.log(1 / gamma) if eta == 0 else (1 - gamma) * eta / math.expm1(-eta * math.log(gamma))
        )
        return _invert_distribution(1, first, lambda k: (1 - gamma) * (k + eta) / (k + 1), rng)


@dataclass(frozen=True)
class PoissonNumber:
    """A Poisson number of runs; where it is 0, nothing is trained and nothing is released."""

    mean: float

    def __post_init__(self) -> None:
        validate.positive("runs", self.mean)

    def best_run_event(self, run: Event) -> Event:
        """Returns the event of releasing the best run."""
        return TunePoisson(run, self.mean)

    def draw(self, rng: Rng) -> int:
        """Draws the number by inverting the distribution function."""
        return _invert_distribution(0, math.exp(-self.mean), lambda k: self.mean / (k + 1), rng)


def _invert_distribution(k: int, mass: float, ratio: Callable[[int], float], rng: Rng) -> int:
    """Returns the first k whose distribution function exceeds a uniform value, where mass(k + 1) = mass(k) · ratio(k)."""
    u, total = float(rng.uniform(1)[0]), mass
    while total < u and k < _MOST_TRIALS and mass > 0:
        mass *= ratio(k)
        k += 1
        total += mass
    return k
