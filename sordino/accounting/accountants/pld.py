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
from dataclasses import dataclass

import numpy as np

from sordino import validate
from sordino.accounting.accountant import Unsupported
from sordino.accounting.accountants.rdp import RDP
from sordino.accounting.accountants.tuned import least_delta, least_epsilon, searches, tuned_delta, tuned_epsilon
from sordino.accounting.privacy_loss.allocation import AllocationPair
from sordino.accounting.privacy_loss.certified import (
    SENSELESS,
    adding_at_most,
    directions,
    phases_delta,
    phases_epsilon,
    sum_of_parts,
)
from sordino.accounting.privacy_loss.closed import lone_gaussian, one_release_delta, one_release_epsilon, pure_epsilon
from sordino.accounting.privacy_loss.consistency import markov_epsilon
from sordino.accounting.privacy_loss.pairs import Array, BoundedRangePair
from sordino.accounting.privacy_loss.phases import collect, is_private, relation_of
from sordino.accounting.privacy_loss.saddle import Phases
from sordino.accounting.privacy_loss.shuffling import shuffle_lower_bound, shuffle_lower_delta
from sordino.accounting.privacy_loss.soundness import at_most
from sordino.events import (
    BallsInBins,
    Event,
    Gaussian,
    Relation,
    Repeat,
    Shuffle,
    Together,
    canonical,
    counted,
    walk,
)

TOLERANCE = 6e-5
_TYPICAL_DELTA, _LEAST_DELTA, _REFINEMENTS = 1e-10, 1e-30, 4


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

    def __post_init__(self) -> None:
        object.__setattr__(self, "tolerance", validate.fraction("tolerance", self.tolerance))

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
        if searches(event):
            asked = relation or self.relation
            high = tuned_delta(event, epsilon, self, asked)
            return (min(high, least_delta(event, epsilon, self, asked)) if want_lower else 0.0, high)
        asked = relation_of(event, relation or self.relation)
        low, high = 0.0, _TYPICAL_DELTA
        for _ in range(_REFINEMENTS):
            # δ decides how far into its tails a pass of balls in bins is resolved; a much smaller one is looked at again
            assumed = high
            phases = collect(event, asked, assumed)
            if not phases:
                return (0.0, 0.0)
            lone = lone_gaussian(phases)
            if lone is not None:
                low = high = one_release_delta(lone, epsilon)
                break
            low = high = 0.0
            for add in directions(phases):
                below, above = phases_delta(phases, add, epsilon, self.tolerance, want_lower)
                low, high = max(low, below), max(high, above)
            if not _has_passes(phases) or high > 1e-2 * assumed or high < _LEAST_DELTA:
                break
        if _has_passes(phases) and high > _TYPICAL_DELTA:
            # each pass counted as one release without amplification is a bound as well
            high = min(high, self.delta_bounds(_unallocated(event), epsilon, relation=relation, want_lower=False)[1])
        if any(isinstance(inner, Shuffle) for inner in walk(event)):
            low = self._shuffled(
                event,
                want_lower,
                lambda part: self.delta_bounds(part, epsilon, relation=relation)[0],
                lambda multiplier, batches, passes: shuffle_lower_delta(multiplier, batches, passes, epsilon),
            )
        at_most(low, high, "lower and upper bound on δ")
        return (min(low, high), high)

    def _bound(self, event: Event, delta: float, relation: Relation | None, want_lower: bool) -> tuple[float, float]:
        delta = validate.number("delta", delta)
        if not 0 <= delta < 1:
            raise ValueError(f"delta={delta}: must lie in [0, 1); typical values are far below 1 / dataset size")
        if not is_private(event):
            return (math.inf, math.inf)
        if searches(event) and delta > 0:
            asked = relation or self.relation
            high = tuned_epsilon(event, delta, self, asked)
            return (min(high, least_epsilon(event, delta, self, asked)) if want_lower else 0.0, high)
        phases = collect(event, relation_of(event, relation or self.relation), max(delta, 1e-30))
        if not phases:
            return (0.0, 0.0)
        shuffled = any(isinstance(inner, Shuffle) for inner in walk(event))
        if delta == 0:
            pure = pure_epsilon(phases)
            return (0.0 if shuffled else pure, pure)
        lone = lone_gaussian(phases)
        if lone is not None:
            exact = one_release_epsilon(lone, delta)
            return (self._shuffled_epsilon(event, delta, relation, want_lower) if shuffled else exact, exact)
        low = high = 0.0
        for add in directions(phases):
            if add and adding_at_most(phases) <= high:
                continue
            below, above = phases_epsilon(phases, add, delta, self.tolerance, low if want_lower else None)
            low, high = max(low, below), max(high, above)
        if _has_passes(phases) and (math.isinf(high) or high > 1.1 * low):
            # one unamplified release per pass, the average of whose divergences over the bins is an upper bound by
            # convexity: the better one where there is little noise
            high = min(high, self._bound(_unallocated(event), delta, relation, want_lower=False)[1])
        high = min(high, pure_epsilon(phases))
        if any(isinstance(sampled.pair, BoundedRangePair) for sampled, _ in phases):
            # composed is the worst pair at each ε; for exponential mechanisms the worst at each order can be tighter,
            # and no mechanism attains the pair
            with suppress(Unsupported):
                high = min(high, RDP(relation=relation or self.relation).epsilon(event, delta))
                low = min(low, high)
        high = min(high, sum_of_parts(phases, delta, self.tolerance, low, high))
        if high > SENSELESS:
            # transforms of losses this large are coarse, and other theorems may know better
            high = min(high, self._by_moments(event, phases, delta, relation))
        if shuffled:
            low = self._shuffled_epsilon(event, delta, relation, want_lower)
        at_most(low, high, "lower and upper bound on ε")
        return (min(low, high), high)

    def _by_moments(self, event: Event, phases: Phases, delta: float, relation: Relation | None) -> float:
        """Returns the smaller of what Rényi divergences and Markov's inequality say about ε; infinity if neither does."""
        found = math.inf
        with suppress(Unsupported, OverflowError):
            found = RDP(relation=relation or self.relation).epsilon(event, delta)
        if math.isinf(found):
            found = max(markov_epsilon(phases, add, delta) for add in directions(phases))
        return found

    def _shuffled_epsilon(self, event: Event, delta: float, relation: Relation | None, want_lower: bool) -> float:
        """Returns an ε that an event with shuffled passes certainly reaches."""
        return self._shuffled(
            event,
            want_lower,
            lambda part: self.bounds(part, delta, relation=relation)[0],
            lambda multiplier, batches, passes: shuffle_lower_bound(multiplier, batches, passes, delta),
        )

    @staticmethod
    def _shuffled(
        event: Event, want: bool, other: Callable[[Event], float], attack: Callable[[float, int, int], float]
    ) -> float:
        """Returns the largest of what is proved about the shuffled passes of an event and about all the rest.

        The upper bound counts a pass as its worst release without amplification, which no known attack attains. A lower
        bound is what the best known attack on Gaussian passes proves (Chua et al. 2024), and nothing for other passes.
        """
        if not want:
            return 0.0
        found, rest = 0.0, []
        for part, count in counted(canonical(event)):
            if not isinstance(part, Shuffle):
                rest.append(Repeat(part, count))
                continue
            inner = part.event
            release, batches = (inner.event, inner.count) if isinstance(inner, Repeat) else (inner, 1)
            if isinstance(release, Gaussian):
                found = max(found, attack(release.multiplier, batches, count))
        return max(found, other(Together(*rest))) if rest else found


def _has_passes(phases: Phases) -> bool:
    """Returns whether a pass of balls in bins is among the phases."""
    return any(isinstance(sampled.pair, AllocationPair) for sampled, _ in phases)


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
