"""Accountants by composition theorems: basic, advanced, and the strong composition of Abadi's figure 2.

Every release gets its own (ε₀, δ₀): a Gaussian by Balle & Wang 2018, amplified by sampling to log(1 + q(e^{ε₀}−1)) and
qδ₀.

    basic      Σ εᵢ
    advanced   Σ εᵢ tanh(εᵢ/2) + √(2 ln(1/δ') Σ εᵢ²)          Kairouz, Oh & Viswanath 2015 (the optimal drift)
    strong     Σ εᵢ(e^{εᵢ}−1) + √(2 ln(1/δ') Σ εᵢ²)           Dwork, Rothblum & Vadhan 2010

**Privacy:** `Strong()` repeats figure 2 of Abadi et al. 2016 as printed, with ε₁ = q·ε₀. That is not amplification
(which is larger), the drift is Tε₁², half of δ goes to either term, and the classical ε₀ = 1.46 lies outside its
proof: it is no bound and is marked so. `Strong(valid=True)`
is the same composition made valid.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from sordino import validate
from sordino.accounting.accountant import Unsupported
from sordino.accounting.phases import collect_phases_without_delta, relation_of
from sordino.events import Event, Relation, canonical, event_counts, is_private
from sordino.events.base import require_event
from sordino.events.phase_collector import PhaseCollector
from sordino.privacy_loss.closed_forms import pure_epsilon
from sordino.privacy_loss.gaussian import gaussian_epsilon
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.pairs import Array, GaussianPair
from sordino.privacy_loss.saddle import Phases

_SPLITS: tuple[float, ...] = tuple(
    np.concatenate((np.geomspace(1e-6, 0.1, 26), np.linspace(0.12, 0.9, 30), 1 - np.geomspace(0.08, 1e-6, 20)))
)


def _collect_releases(event: Event, relation: Relation) -> Phases:
    """Returns the phases of an event for composition theorems, with plain Gaussians kept apart, because the theorems
    see each of them.
    """
    one_by_one: dict[Sampled, int] = {}
    collector = PhaseCollector(relation)
    for inner, count in event_counts(canonical(event)):
        if inner.is_counted_one_by_one:
            for sampled, times in collect_phases_without_delta(inner, relation):
                one_by_one[sampled] = one_by_one.get(sampled, 0) + times * count
        else:
            inner.add_phases(collector, count)
    return tuple(one_by_one.items()) + collector.phases()


def _epsilon_of_release(sampled: Sampled, delta: float, event: Event) -> float:
    """Returns ε of one release that may spend δ, as composition theorems take it, by the classic chain: the mechanism
    first, then amplification.
    """
    pure = pure_epsilon(((sampled, 1),))
    if math.isfinite(pure):
        return pure
    if not isinstance(sampled.pair, GaussianPair):
        raise Unsupported(event, "basic and advanced composition know Gaussian, Laplace, exponential, response only")
    epsilon = gaussian_epsilon(sampled.pair.mu, min(1.0, delta / sampled.rate))
    return math.log1p(sampled.rate * math.expm1(epsilon)) if epsilon < 700 else epsilon + math.log(sampled.rate)


def _count_spending_delta(phases: Phases) -> int:
    """Returns how many releases are not purely private, so that they need a share of δ."""
    return sum(count for sampled, count in phases if math.isinf(pure_epsilon(((sampled, 1),))))


def _epsilons_of_releases(phases: Phases, delta: float, event: Event) -> list[tuple[float, int]]:
    """Returns (ε of one release, count) of every phase, which composition theorems add up; δ is spent evenly on the
    releases that need one.
    """
    spending = _count_spending_delta(phases)
    share = delta / spending if spending else 0.0
    return [(_epsilon_of_release(sampled, share, event), count) for sampled, count in phases]


@dataclass(frozen=True)
class Basic:
    """Basic composition: everything adds up. δ = 0 is allowed when every release is purely private.

    >>> from sordino.events import Laplace, Repeat
    >>> Basic().epsilon(Repeat(Laplace(2.0), 3), 0.0)
    1.5
    """

    relation: Relation | None = None

    name = "basic"
    is_bound = True

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns ε by the basic composition theorem: Σ εᵢ at Σ δᵢ = δ."""
        delta = _require_delta(delta)
        event = require_event(event)
        if not is_private(event):
            return math.inf
        phases = _collect_releases(event, relation_of(event, self.relation))
        if delta == 0:
            return pure_epsilon(phases)
        return math.fsum(epsilon * count for epsilon, count in _epsilons_of_releases(phases, delta, event))

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the smallest δ at which ε is reached, from above."""
        return _find_delta(self.epsilon, event, epsilon)

    def profile(self, event: Event) -> Callable[[Array], Array]:
        """Returns δ(ε) as a function of arrays."""
        return lambda epsilon: np.vectorize(lambda one: self.delta(event, float(one)), otypes=[float])(epsilon)


@dataclass(frozen=True)
class Advanced:
    """Advanced composition (Kairouz–Oh–Viswanath drift), the best split of δ; never worse than basic.

    Args:
        relation: which neighbours; None for what the event's samplers speak about.

    Examples:
        >>> from sordino.events import Laplace, Repeat
        >>> round(Advanced().epsilon(Repeat(Laplace(50.0), 500), delta=1e-5), 3)
        2.246

    """

    relation: Relation | None = None

    name = "advanced"
    is_bound = True

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns the smaller ε of the advanced and the basic composition theorem."""
        delta = _require_delta(delta)
        event = require_event(event)
        if not is_private(event):
            return math.inf
        basic = Basic(self.relation).epsilon(event, delta)
        if delta == 0:
            return basic
        phases = _collect_releases(event, relation_of(event, self.relation))
        return min(basic, _compose_with_best_split(phases, delta, event, lambda e: e * math.tanh(e / 2)))

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the smallest δ at which ε is reached, from above."""
        return _find_delta(self.epsilon, event, epsilon)

    def profile(self, event: Event) -> Callable[[Array], Array]:
        """Returns δ(ε) as a function of arrays."""
        return lambda epsilon: np.vectorize(lambda one: self.delta(event, float(one)), otypes=[float])(epsilon)


@dataclass(frozen=True)
class Strong:
    """Strong composition as in figure 2 of Abadi et al. 2016: as printed (no bound), or made valid.

    >>> from sordino.events import Gaussian, Poisson, Repeat
    >>> round(Strong().epsilon(Repeat(Poisson(0.01, Gaussian(4.0)), 10_000), 1e-5), 2)
    9.34
    """

    valid: bool = False
    relation: Relation | None = None

    @property
    def name(self) -> str:
        """How the method is called."""
        return "strong composition" if self.valid else "strong composition as printed (not a bound)"

    @property
    def is_bound(self) -> bool:
        """Whether the number may be claimed."""
        return self.valid

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns ε by the strong composition theorem of Dwork, Rothblum and Vadhan, at the best split of δ."""
        delta = validate.fraction("delta", delta)
        event = require_event(event)
        if not is_private(event):
            return math.inf
        phases = _collect_releases(event, relation_of(event, self.relation))
        if self.valid:
            return _compose_with_best_split(phases, delta, event, lambda e: e * math.expm1(min(e, 700.0)))
        return _compose_with_best_split(phases, delta, event, lambda e: e * e, _epsilon_as_printed, splits=(0.5,))

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns the smallest δ at which ε is reached, from above."""
        return _find_delta(self.epsilon, event, epsilon)

    def profile(self, event: Event) -> Callable[[Array], Array]:
        """Returns δ(ε) as a function of arrays."""
        return lambda epsilon: np.vectorize(lambda one: self.delta(event, float(one)), otypes=[float])(epsilon)


def _epsilon_as_printed(sampled: Sampled, delta: float, event: Event) -> float:
    """Returns ε of one release as the strong composition theorem in Abadi's figure 2 takes it, q·√(2 ln(1.25/δ₀))/σ."""
    if not isinstance(sampled.pair, GaussianPair):
        return _epsilon_of_release(sampled, delta, event)
    return sampled.rate * sampled.pair.mu * math.sqrt(2 * math.log(max(1.25 * sampled.rate / delta, 1.0 + 1e-9)))


def _compose_with_best_split(
    phases: Phases,
    delta: float,
    event: Event,
    drift: Callable[[float], float],
    single: Callable[[Sampled, float, Event], float] = _epsilon_of_release,
    splits: Sequence[float] = _SPLITS,
) -> float:
    """Returns ε by an advanced or strong composition theorem: the minimum over δ = δ' + Σδᵢ of Σ drift(εᵢ) + √(2
    ln(1/δ') Σεᵢ²).
    """
    if not phases:
        return 0.0
    # Pure releases, with δᵢ = 0, need no share of δ; what is spent per release is divided among the others.
    spending = _count_spending_delta(phases)
    best = math.inf
    # The theorem holds for every division of δ, so the best of a few divisions is a valid bound, and none has to be
    # optimal.
    for share in splits if spending else (0.0,):
        each = delta * share / spending if spending else 0.0
        parts = [(single(sampled, each, event), count) for sampled, count in phases]
        slack = delta * (1 - share)
        # Squares of an ε above 1e150 would overflow; the result is useless there in any case, and stays above the
        # truth.
        spread = math.sqrt(2 * math.log(1 / slack) * math.fsum(count * min(e, 1e150) ** 2 for e, count in parts))
        best = min(best, math.fsum(count * drift(e) for e, count in parts) + spread)
    return best


def _require_delta(delta: float) -> float:
    """Returns the δ that an accountant by composition theorems was asked about; refuses what is not in [0, 1)."""
    delta = validate.number("delta", delta)
    if not 0 <= delta < 1:
        raise ValueError(f"delta={delta}: must lie in [0, 1)")
    return delta


def _find_delta(epsilon_at: Callable[[Event, float], float], event: Event, epsilon: float) -> float:
    """Returns the smallest δ at which a composition theorem gives at most the asked ε, from above, by bisection over
    log δ.
    """
    epsilon = validate.non_negative("epsilon", epsilon)
    low, high = math.log(1e-300), 0.0
    if epsilon_at(event, 1 - 1e-12) > epsilon:
        return 1.0
    for _ in range(60):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if epsilon_at(event, min(math.exp(middle), 1 - 1e-12)) > epsilon else (low, middle)
    return math.exp(high)
