"""The privacy-loss accountant: ε and δ with certified lower and upper bounds.

Sommer, Meiser & Mohammadi 2019; Koskela, Jälkö & Honkela 2020; Gopi, Lee & Wutschitz 2021; Doroshenko et al. 2022; Zhu,
Dong & Wang 2022. δ(ε) = E_P[(1 − e^{ε−L})₊] for L the sum of the privacy losses of all releases.

**Privacy:** `epsilon` and `delta` are upper bounds: connect-the-dots pairs dominate the true ones, adding and removing a
record are composed apart and the larger counts, truncation, aliasing and rounding are charged. `bounds` adds a lower
bound from binned outputs, so every answer comes with its own error. See `lattice`, `compose` and docs/accounting.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from sordino import validate
from sordino.accounting.closed import lone_gaussian, one_release_delta, one_release_epsilon, pure_epsilon
from sordino.accounting.lossdist import (
    Setting,
    choose,
    delta_above,
    delta_below,
    epsilon_above,
    epsilon_below,
    lower_tails,
    upper_tail,
)
from sordino.accounting.pairs import Array
from sordino.accounting.phases import collect, is_private, relation_of
from sordino.accounting.saddle import Estimate, Phases
from sordino.events import Event, Relation

TOLERANCE = 6e-5
_CUT = 1e-7  # share of δ that truncated tails may cost
_ASTRAY = 0.1  # relative distance between guess and answer at which the guess is improved
_ROOM = 8.0  # e-folds of precision given up for a narrower window
_LEAST_LOG_DELTA = -690.0


@dataclass(frozen=True)
class PLD:
    """Tight accounting by composing privacy-loss distributions.

    `tolerance` is the relative error of ε aimed at; it decides time, never validity. `relation` forces a neighbouring
    relation where an event allows several.

    >>> from sordino.events import Gaussian, Poisson, Repeat
    >>> round(PLD().epsilon(Repeat(Poisson(0.01, Gaussian(4.0)), 10_000), 1e-5), 3)
    0.947
    """

    tolerance: float = TOLERANCE
    relation: Relation | None = None

    name = "PLD"
    is_bound = True

    def epsilon(self, event: Event, delta: float, *, relation: Relation | None = None) -> float:
        """The smallest ε at this δ that can be certified; infinity when there is none."""
        return self._bound(event, delta, relation, lower=False)[1]

    def bounds(self, event: Event, delta: float, *, relation: Relation | None = None) -> tuple[float, float]:
        """Certified (lower, upper) bounds on ε at this δ."""
        return self._bound(event, delta, relation, lower=True)

    def delta(self, event: Event, epsilon: float, *, relation: Relation | None = None) -> float:
        """An upper bound on δ at this ε."""
        return self.delta_bounds(event, epsilon, relation=relation, lower=False)[1]

    def profile(self, event: Event) -> Callable[[Array], Array]:
        """δ(ε) as a function of arrays."""
        return lambda epsilon: np.vectorize(lambda one: self.delta(event, float(one)), otypes=[float])(epsilon)

    def delta_bounds(
        self, event: Event, epsilon: float, *, relation: Relation | None = None, lower: bool = True
    ) -> tuple[float, float]:
        """Certified (lower, upper) bounds on δ at this ε."""
        epsilon = validate.non_negative("epsilon", epsilon)
        if not is_private(event):
            return (1.0, 1.0)
        phases = collect(event, relation_of(event, relation or self.relation), 1e-10)
        if not phases:
            return (0.0, 0.0)
        lone = lone_gaussian(phases)
        if lone is not None:
            exact = one_release_delta(lone, epsilon)
            return (exact, exact)
        low = high = 0.0
        for add in _directions(phases):
            below, above = _delta(phases, add, epsilon, self.tolerance, lower)
            low, high = max(low, below), max(high, above)
        return (min(low, high), high)

    def _bound(self, event: Event, delta: float, relation: Relation | None, lower: bool) -> tuple[float, float]:
        delta = validate.number("delta", delta)
        if not 0 <= delta < 1:
            raise ValueError(f"delta={delta}: must lie in [0, 1); typical values are far below 1 / dataset size")
        if not is_private(event):
            return (math.inf, math.inf)
        phases = collect(event, relation_of(event, relation or self.relation), max(delta, 1e-30))
        if not phases:
            return (0.0, 0.0)
        if delta == 0:
            pure = pure_epsilon(phases)
            return (pure, pure)
        lone = lone_gaussian(phases)
        if lone is not None:
            exact = one_release_epsilon(lone, delta)
            return (exact, exact)
        low = high = 0.0
        for add in _directions(phases):
            if add and _adding_at_most(phases) <= high:
                continue
            below, above = _epsilon(phases, add, delta, self.tolerance, lower)
            low, high = max(low, below), max(high, above)
        pure = pure_epsilon(phases)
        return (min(low, high, pure), min(high, pure))


def _directions(phases: Phases) -> tuple[bool, ...]:
    return (False,) if all(sampled.symmetric for sampled, _ in phases) else (False, True)


def _adding_at_most(phases: Phases) -> float:
    """When a record is added, a sampled release never loses more than −log(1−q)."""
    return math.fsum(
        count * -math.log1p(-sampled.rate) if sampled.rate < 1 and not sampled.subset else math.inf
        for sampled, count in phases
    )


def _epsilon(phases: Phases, add: bool, delta: float, tolerance: float, lower: bool) -> tuple[float, float]:
    cut = _CUT * delta / sum(count for _, count in phases)
    estimate = Estimate(phases, add, cut)
    saddle = estimate.at_delta(delta)
    setting = choose(phases, add, saddle, estimate.std, cut, tolerance)
    high = _upper(phases, add, setting, delta)
    guess = saddle.epsilon
    for _ in range(3):
        if math.isinf(high) or (not math.isnan(high) and abs(guess - high) <= _ASTRAY * max(high, 0.1 * estimate.std)):
            break
        guess = max(high, 0.0) if not math.isnan(high) else guess / 2
        saddle = estimate.gentle(guess, math.log(delta), _ROOM)
        setting = choose(phases, add, saddle, estimate.std, cut, tolerance)
        again = _upper(phases, add, setting, delta)
        high = again if math.isnan(high) else min(high, again if not math.isnan(again) else high)
    if math.isnan(high):
        high = math.inf
    low = 0.0
    if lower and high > 0 and math.isfinite(high):
        p, q = lower_tails(phases, add, setting)
        low = epsilon_below(p, q, delta)
    return low, high


def _upper(phases: Phases, add: bool, setting: Setting, delta: float) -> float:
    curve, infinite = upper_tail(phases, add, setting)
    return epsilon_above(curve, infinite, delta)


def _delta(phases: Phases, add: bool, epsilon: float, tolerance: float, lower: bool) -> tuple[float, float]:
    steps = sum(count for _, count in phases)
    log_delta, cut = math.log(1e-10), 1e-17 / steps
    for _ in range(4):
        estimate = Estimate(phases, add, cut)
        saddle = estimate.at_epsilon(epsilon)
        found = max(_LEAST_LOG_DELTA, saddle.log_delta)
        cut = max(math.exp(max(found, -600.0)) * _CUT / steps, 1e-300)
        if abs(found - log_delta) < 1:
            break
        log_delta = found
    setting = choose(phases, add, saddle, estimate.std, cut, tolerance)
    setting = Setting(setting.theta, setting.mesh, epsilon)
    curve, infinite = upper_tail(phases, add, setting)
    high = delta_above(curve, infinite, epsilon)
    low = 0.0
    if lower:
        low = delta_below(*lower_tails(phases, add, setting), epsilon)
    return low, high
