"""The privacy-loss accountant: ε and δ with certified lower and upper bounds.

Sommer, Meiser & Mohammadi 2019; Koskela, Jälkö & Honkela 2020; Gopi, Lee & Wutschitz 2021; Doroshenko et al. 2022; Zhu,
Dong & Wang 2022. δ(ε) = E_P[(1 − e^{ε−L})₊] for L the sum of the privacy losses of all releases.

**Privacy:** `epsilon` and `delta` are upper bounds: connect-the-dots pairs dominate the true ones, adding and removing
a record are composed apart and the larger counts, truncation, aliasing and rounding are charged. `bounds` adds a lower
bound from binned outputs, so every answer comes with its own error. See `lattice`, `compose` and docs/accounting.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from sordino import validate
from sordino.accounting.accountants.rdp import RDP
from sordino.accounting.losses.allocation import AllocationPair
from sordino.accounting.losses.closed import lone_gaussian, one_release_delta, one_release_epsilon, pure_epsilon
from sordino.accounting.losses.compose import LONGEST
from sordino.accounting.losses.lossdist import Setting, choose, lower, upper
from sordino.accounting.losses.pairs import Array, BoundedRangePair, GaussianPair
from sordino.accounting.losses.phases import collect, is_private, relation_of
from sordino.accounting.losses.saddle import Estimate, Phases, Saddle, is_heavy, jump_limit, locate, near
from sordino.events import BallsInBins, Event, Relation, Repeat, Together

TOLERANCE = 6e-5
CUT = 1e-5  # share of δ that truncated tails may cost
_ASTRAY = 0.1  # relative distance between guess and answer at which the guess is improved
_TRIES = 6
_HEAVY_LENGTH = 1 << 20
_GAP = 8e-4  # relative gap at which one lower bound is enough
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
        return self._bound(event, delta, relation, want_lower=False)[1]

    def bounds(self, event: Event, delta: float, *, relation: Relation | None = None) -> tuple[float, float]:
        """Certified (lower, upper) bounds on ε at this δ."""
        return self._bound(event, delta, relation, want_lower=True)

    def delta(self, event: Event, epsilon: float, *, relation: Relation | None = None) -> float:
        """An upper bound on δ at this ε."""
        return self.delta_bounds(event, epsilon, relation=relation, want_lower=False)[1]

    def profile(self, event: Event) -> Callable[[Array], Array]:
        """δ(ε) as a function of arrays."""
        return lambda epsilon: np.vectorize(lambda one: self.delta(event, float(one)), otypes=[float])(epsilon)

    def delta_bounds(
        self, event: Event, epsilon: float, *, relation: Relation | None = None, want_lower: bool = True
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
        for add in directions(phases):
            below, above = _delta(phases, add, epsilon, self.tolerance, want_lower)
            low, high = max(low, below), max(high, above)
        return (min(low, high), high)

    def _bound(self, event: Event, delta: float, relation: Relation | None, want_lower: bool) -> tuple[float, float]:
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
        for add in directions(phases):
            if add and _adding_at_most(phases) <= high:
                continue
            below, above = _epsilon(phases, add, delta, self.tolerance, want_lower)
            low, high = max(low, below), max(high, above)
        if math.isinf(high) and any(isinstance(sampled.pair, AllocationPair) for sampled, _ in phases):
            # δ below the rounding of the pass: fall back on one unamplified release per pass, the average of whose
            # divergences over the bins is an upper bound by convexity
            high = self._bound(_unallocated(event), delta, relation, want_lower=False)[1]
        high = min(high, pure_epsilon(phases))
        if any(isinstance(sampled.pair, BoundedRangePair) for sampled, _ in phases):
            # composed is the worst pair at each ε; for exponential mechanisms the worst at each order can be tighter
            high = min(high, RDP(relation=relation or self.relation).epsilon(event, delta))
        return (min(low, high), high)


def _unallocated(event: Event) -> Event:
    """Balls in bins without amplification: a record meets one release per pass."""
    match event:
        case Together(events=events):
            return Together(*(_unallocated(inner) for inner in events))
        case Repeat(event=inner, count=count):
            return Repeat(_unallocated(inner), count)
        case BallsInBins(event=inner):
            return inner
        case _:
            return event


def directions(phases: Phases) -> tuple[bool, ...]:
    """Removing a record, and adding one unless that is the same."""
    return (False,) if all(sampled.symmetric for sampled, _ in phases) else (False, True)


def _adding_at_most(phases: Phases) -> float:
    """When a record is added, a sampled release never loses more than −log(1−q)."""
    return math.fsum(
        count * -math.log1p(-sampled.rate) if sampled.rate < 1 and not sampled.subset else math.inf
        for sampled, count in phases
    )


def _surely_zero(phases: Phases, delta: float) -> bool:
    """δ(0) is at most the sum of the single releases' total variations."""
    total = 0.0
    for sampled, count in phases:
        one = math.erf(sampled.pair.mu / math.sqrt(8)) if isinstance(sampled.pair, GaussianPair) else 1.0
        total += count * sampled.rate * one
    return total <= delta


def _epsilon(phases: Phases, add: bool, delta: float, tolerance: float, want_lower: bool) -> tuple[float, float]:
    if _surely_zero(phases, delta):
        return 0.0, 0.0
    cut = CUT * delta / sum(count for _, count in phases)
    whole = Estimate(phases, add, cut)
    saddle = whole.at_delta(delta)
    heavy = is_heavy(phases, add, cut, delta, whole, saddle.theta)
    search = _Search(phases, add, cut, delta, tolerance)
    search.run(whole, saddle, _HEAVY_LENGTH if heavy else LONGEST)
    if heavy and (search.ever_astray or search.longest >= _HEAVY_LENGTH // 2):
        apart = locate(phases, add, cut, delta)
        if apart is not None:
            with suppress(OverflowError):
                search.run(*apart, LONGEST)
    low = 0.0
    if want_lower and 0 < search.high < math.inf:
        for _, setting in sorted(search.settings, key=lambda pair: pair[0]):
            with suppress(OverflowError):
                low = max(low, lower(phases, add, setting).epsilon(delta))
            if search.high - low <= _GAP * search.high:
                break
    return low, search.high


class _Search:
    """Upper bounds on ε at several settings; every one of them holds, the smallest counts."""

    def __init__(self, phases: Phases, add: bool, cut: float, delta: float, tolerance: float) -> None:
        self.phases, self.add, self.cut, self.delta, self.tolerance = phases, add, cut, delta, tolerance
        self.high = math.inf
        self.settings: list[tuple[float, Setting]] = []
        self.astray = self.ever_astray = False
        self.longest = 0

    def run(self, estimate: Estimate, saddle: Saddle, longest: int) -> None:
        """Compose at a saddle point, and again nearer to the answer while the guess was bad."""
        guess = saddle.epsilon
        for attempt in range(_TRIES):
            setting = choose(self.phases, self.add, saddle, estimate.std, self.cut, self.tolerance)
            bound = upper(self.phases, self.add, setting, longest)
            self.longest = max(self.longest, bound.length)
            found = bound.epsilon(self.delta)
            self.high = min(self.high, found) if not math.isnan(found) else self.high
            self.settings.append((found if not math.isnan(found) else math.inf, setting))
            known = not math.isnan(found)
            self.astray = not known or (found > 0 and abs(guess - found) > _ASTRAY * max(found, 0.1 * estimate.std))
            if not self.astray or math.isinf(found):
                break
            self.ever_astray = True
            guess = found if known else (0.25 * guess if attempt < _TRIES - 2 else 0.0)
            saddle = near(estimate, guess, self.delta)


def _delta(phases: Phases, add: bool, epsilon: float, tolerance: float, want_lower: bool) -> tuple[float, float]:
    steps = sum(count for _, count in phases)
    log_delta, cut = -23.0, 1e-17 / steps
    for _ in range(6):
        estimate = Estimate(phases, add, cut)
        saddle = estimate.at_epsilon(epsilon)
        found = min(0.0, max(_LEAST_LOG_DELTA, saddle.log_delta))
        cut = max(math.exp(found) * CUT / steps, 1e-300)
        if abs(found - log_delta) < 0.5:
            break
        log_delta = found
    settings = [choose(phases, add, saddle, estimate.std, cut, tolerance)]
    if is_heavy(phases, add, cut, math.exp(found), estimate, saddle.theta):
        limit = jump_limit(phases, add, cut, math.exp(found))
        bulk = Estimate(phases, add, cut, limit)
        if bulk.jumps:
            apart = near(bulk, epsilon, math.exp(found))
            settings.append(choose(phases, add, apart, bulk.std, cut, tolerance))
    low, high = 0.0, 1.0
    for setting in settings:
        with suppress(OverflowError):
            at = replace(setting, centre=epsilon)
            above = upper(phases, add, at).delta(epsilon)
            high = min(high, above) if not math.isnan(above) else high
            low = max(low, lower(phases, add, at).delta(epsilon)) if want_lower else 0.0
    return low, high
