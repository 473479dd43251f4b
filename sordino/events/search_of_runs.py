"""Hyper-parameter search: the best of a random number of runs, by a score that each run releases.

Papernot & Steinke 2022; Liu & Talwar 2019; Koskela, Redberg & Wang 2024.

**Privacy:** only the winner is released, and the score by which it won is part of each run. How many runs there were is
drawn in secret, from the distribution that the event names. `privacy_loss/stopping.py` has the Rényi curves and
`privacy_loss/selection.py` the bound from a run's whole privacy profile.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino import validate
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.events.phase_collector import Unsupported
from sordino.events.relation import Relation
from sordino.privacy_loss.pairs import Array, Pair
from sordino.privacy_loss.selection import NegativeBinomialRuns, PoissonRuns, Runs
from sordino.privacy_loss.stopping import expected_runs, negative_binomial_curve, poisson_curve


@dataclass(frozen=True)
class RunSearch(Event):
    """Base of searches: the best of K runs of `event`, K drawn in secret. Each says how K is distributed."""

    event: Event

    def runs(self) -> Runs:
        """Returns the distribution of K, by its generating function."""
        raise NotImplementedError

    def expected_runs(self) -> float:
        """Returns E[K]."""
        raise NotImplementedError

    def probability_of_a_run(self) -> float:
        """Returns P[K ≥ 1]."""
        return 1.0

    def epsilon_limit_factor(self) -> float:
        """Returns a factor f so large that the ε of the search is surely below f times the ε of one run."""
        return 4.0

    def dominating_pair(self, moves: int) -> Pair:
        """Raises, because a search inside a draw has no theorem."""
        raise Unsupported(self, "a search is accounted for as a whole, not as a part of a draw")

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the bound of one run times the expected number of runs."""
        return self.expected_runs() * self.event.noise_end(moves, delta, coordinates)


@register_event
@dataclass(frozen=True)
class TunePoisson(RunSearch):
    """The best of K runs of `event` by its released score, K ~ Poisson(`mean`) drawn in secret (Papernot & Steinke).

    Args:
        event: one run.
        mean: the mean of K.

    Examples:
        >>> from sordino.accounting import PLD
        >>> from sordino.events import Gaussian
        >>> round(PLD().epsilon(TunePoisson(Gaussian(5.0), mean=10.0), delta=1e-5), 2)
        1.45

    """

    mean: float

    def __post_init__(self) -> None:
        set_field(self, "event", require_event(self.event))
        set_field(self, "mean", validate.positive("mean", self.mean))

    def runs(self) -> PoissonRuns:
        """Returns the Poisson distribution."""
        return PoissonRuns(self.mean)

    def expected_runs(self) -> float:
        """Returns the mean of K."""
        return self.mean

    def probability_of_a_run(self) -> float:
        """Returns 1 − e^{−mean}."""
        return -math.expm1(-self.mean)

    def renyi_curve(self, orders: Array, relation: Relation) -> Array:
        """Returns the curve of Papernot & Steinke's theorem 6, from that of one run."""
        return poisson_curve(orders, self.event.renyi_curve(orders, relation), self.mean)


@register_event
@dataclass(frozen=True)
class TuneNegativeBinomial(RunSearch):
    """The best of K runs of `event`, K ~ truncated negative binomial (`shape`, `stop`), K ≥ 1, drawn in secret.

    shape 1 is the geometric distribution of Liu & Talwar 2019 with mean 1/stop; shape 0 the logarithmic one.

    Args:
        event: one run.
        shape: of the distribution of K.
        stop: its other parameter.

    Examples:
        >>> from sordino.accounting import PLD
        >>> from sordino.events import Gaussian
        >>> round(PLD().epsilon(TuneNegativeBinomial(Gaussian(5.0), shape=1.0, stop=0.1), delta=1e-5), 2)
        1.13

    """

    shape: float
    stop: float

    def __post_init__(self) -> None:
        """Validates the run and both parameters of the distribution."""
        set_field(self, "event", require_event(self.event))
        # The negative binomial distribution is defined for shapes above −1; 0 is the logarithmic one.
        shape = validate.number("shape", self.shape)
        if not -1 < shape < math.inf:
            raise ValueError(f"shape={shape}: must be > -1 and finite")
        set_field(self, "shape", shape)
        set_field(self, "stop", validate.fraction("stop", self.stop))

    def runs(self) -> NegativeBinomialRuns:
        """Returns the truncated negative binomial distribution."""
        return NegativeBinomialRuns(self.shape, self.stop)

    def expected_runs(self) -> float:
        """Returns the mean of K."""
        return expected_runs(self.shape, self.stop)

    def epsilon_limit_factor(self) -> float:
        """Returns a factor that grows with the shape, because larger shapes cost more."""
        return 3 + self.shape

    def renyi_curve(self, orders: Array, relation: Relation) -> Array:
        """Returns the curve of Papernot & Steinke's theorem 2, from that of one run."""
        return negative_binomial_curve(orders, self.event.renyi_curve(orders, relation), self.shape, self.stop)
