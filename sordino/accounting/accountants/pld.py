"""The privacy-loss accountant: ε and δ with certified lower and upper bounds.

Sommer, Meiser & Mohammadi 2019; Koskela, Jälkö & Honkela 2020; Gopi, Lee & Wutschitz 2021; Doroshenko et al. 2022; Zhu,
Dong & Wang 2022. δ(ε) = E_P[(1 − e^{ε−L})₊] for L the sum of the privacy losses of all releases.

**Privacy:** `epsilon` and `delta` are upper bounds: connect-the-dots pairs dominate the true ones, adding and removing
a record are composed apart and the larger counts, truncation, aliasing and rounding are charged. `bounds` adds a lower
bound from binned outputs, so every answer comes with its own error. See `lattice`, `tilted_windows`, docs/accounting.md.
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
from sordino.accounting.accountants.search_bounds import (
    bound_search_delta,
    bound_search_epsilon,
    has_search,
    lower_search_delta,
    lower_search_epsilon,
)
from sordino.accounting.phases import collect_phases, relation_of
from sordino.events import Event, Relation, Repeat, Together, canonical, event_counts, is_private
from sordino.events.base import require_event
from sordino.privacy_loss.certified_bounds import (
    SENSELESS,
    bound_delta,
    bound_epsilon,
    directions,
    largest_loss_when_adding,
    sum_part_epsilons,
)
from sordino.privacy_loss.closed_forms import find_lone_gaussian, one_release_delta, one_release_epsilon, pure_epsilon
from sordino.privacy_loss.consistency import markov_epsilon
from sordino.privacy_loss.pairs import Array
from sordino.privacy_loss.saddle import Phases
from sordino.privacy_loss.soundness import require_at_most

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
        """Returns the smallest ε at this δ that can be certified; infinity when there is none."""
        return self._bound_epsilon(event, delta, relation, want_lower=False)[1]

    def bounds(self, event: Event, delta: float, *, relation: Relation | None = None) -> tuple[float, float]:
        """Returns certified (lower, upper) bounds on ε at this δ."""
        return self._bound_epsilon(event, delta, relation, want_lower=True)

    def delta(self, event: Event, epsilon: float, *, relation: Relation | None = None) -> float:
        """Returns an upper bound on δ at this ε."""
        return self.delta_bounds(event, epsilon, relation=relation, want_lower=False)[1]

    def profile(self, event: Event) -> Callable[[Array], Array]:
        """Returns δ(ε) as a function of arrays."""
        return lambda epsilon: np.vectorize(lambda one: self.delta(event, float(one)), otypes=[float])(epsilon)

    def delta_bounds(
        self, event: Event, epsilon: float, *, relation: Relation | None = None, want_lower: bool = True
    ) -> tuple[float, float]:
        """Returns certified (lower, upper) bounds on δ of an event at an ε, by privacy-loss distributions (PLD)."""
        epsilon = validate.non_negative("epsilon", epsilon)
        event = require_event(event)
        if not is_private(event):
            return (1.0, 1.0)
        # Searches have theorems of their own.
        if has_search(event):
            asked = relation or self.relation
            high = bound_search_delta(event, epsilon, self, asked)
            return (min(high, lower_search_delta(event, epsilon, self, asked)) if want_lower else 0.0, high)
        asked = relation_of(event, relation or self.relation)
        low, high = 0.0, _TYPICAL_DELTA
        for _ in range(_REFINEMENTS):
            # δ decides how far into its tails a pass of balls in bins is resolved; if δ turns out to be much smaller, the
            # pass is resolved again.
            assumed_delta = high
            phases = collect_phases(event, asked, assumed_delta)
            if not phases:
                return (0.0, 0.0)
            lone = find_lone_gaussian(phases)
            if lone is not None:
                low = high = one_release_delta(lone, epsilon)
                break
            # Adding and removing a record are composed apart, and the larger counts.
            low = high = 0.0
            for add in directions(phases):
                direction_low, direction_high = bound_delta(phases, add, epsilon, self.tolerance, want_lower)
                low, high = max(low, direction_low), max(high, direction_high)
            if not _depends_on_delta(phases) or high > 1e-2 * assumed_delta or high < _LEAST_DELTA:
                break
        if _depends_on_delta(phases) and high > _TYPICAL_DELTA:
            # Each pass counted as one release without amplification is a bound as well.
            high = min(
                high, self.delta_bounds(event.without_amplification(), epsilon, relation=relation, want_lower=False)[1]
            )
        if not _is_tight(event):
            low = _largest_lower_bound(
                event,
                want_lower,
                lambda rest: self.delta_bounds(rest, epsilon, relation=relation)[0],
                lambda part, count: part.lower_delta(count, epsilon),
            )
        require_at_most(low, high, "lower and upper bound on δ")
        return (min(low, high), high)

    def _bound_epsilon(
        self, event: Event, delta: float, relation: Relation | None, want_lower: bool
    ) -> tuple[float, float]:
        """Returns lower and upper bounds on ε, by PLD and every other theorem that applies; the lower one is 0 unless
        it is wanted.
        """
        delta = validate.number("delta", delta)
        if not 0 <= delta < 1:
            raise ValueError(f"delta={delta}: must lie in [0, 1); typical values are far below 1 / dataset size")
        event = require_event(event)
        if not is_private(event):
            return (math.inf, math.inf)
        # Searches have theorems of their own.
        if has_search(event) and delta > 0:
            asked = relation or self.relation
            high = bound_search_epsilon(event, delta, self, asked)
            return (min(high, lower_search_epsilon(event, delta, self, asked)) if want_lower else 0.0, high)
        phases = collect_phases(event, relation_of(event, relation or self.relation), max(delta, 1e-30))
        if not phases:
            return (0.0, 0.0)
        # Some compositions have a closed form: pure ε at δ = 0, and a single Gaussian release.
        is_tight = _is_tight(event)
        if delta == 0:
            pure = pure_epsilon(phases)
            return (pure if is_tight else 0.0, pure)
        lone = find_lone_gaussian(phases)
        if lone is not None:
            exact = one_release_epsilon(lone, delta)
            return (exact if is_tight else self._lower_epsilon(event, delta, relation, want_lower), exact)
        # All others are composed: adding and removing a record apart, and the larger counts.
        low = high = 0.0
        for add in directions(phases):
            if add and largest_loss_when_adding(phases) <= high:
                continue
            known = low if want_lower else None
            direction_low, direction_high = bound_epsilon(phases, add, delta, self.tolerance, known)
            low, high = max(low, direction_low), max(high, direction_high)
        # Other theorems that hold for the same event may give a smaller upper bound.
        if _depends_on_delta(phases) and (math.isinf(high) or high > 1.1 * low):
            # One release per pass without amplification: the average of its divergences over the bins is an upper bound by
            # convexity, and the better one where there is little noise.
            high = min(high, self._bound_epsilon(event.without_amplification(), delta, relation, want_lower=False)[1])
        high = min(high, pure_epsilon(phases))
        if any(sampled.pair.renyi_may_be_tighter for sampled, _ in phases):
            # What was composed is the worst pair at each ε. For exponential mechanisms the worst at each order can be
            # tighter, and no mechanism attains the pair.
            with suppress(Unsupported):
                high = min(high, RDP(relation=relation or self.relation).epsilon(event, delta))
                low = min(low, high)
        high = min(high, sum_part_epsilons(phases, delta, self.tolerance, low, high))
        if high > SENSELESS:
            # Transforms of losses this large are coarse, and Rényi divergences may know better.
            high = min(high, self._bound_by_moments(event, phases, delta, relation))
        if not is_tight:
            low = self._lower_epsilon(event, delta, relation, want_lower)
        require_at_most(low, high, "lower and upper bound on ε")
        return (min(low, high), high)

    def _bound_by_moments(self, event: Event, phases: Phases, delta: float, relation: Relation | None) -> float:
        """Returns the smaller of what Rényi divergences and Markov's inequality say about ε, beside PLD's own bound;
        infinity if neither does.
        """
        epsilon = math.inf
        with suppress(Unsupported, OverflowError):
            epsilon = RDP(relation=relation or self.relation).epsilon(event, delta)
        if math.isinf(epsilon):
            epsilon = max(markov_epsilon(phases, add, delta) for add in directions(phases))
        return epsilon

    def _lower_epsilon(self, event: Event, delta: float, relation: Relation | None, want_lower: bool) -> float:
        """Returns PLD's lower bound on ε, one that an event certainly reaches, for events parts of which have phases
        that no data attain.
        """
        return _largest_lower_bound(
            event,
            want_lower,
            lambda rest: self.bounds(rest, delta, relation=relation)[0],
            lambda part, count: part.lower_epsilon(count, delta),
        )


def _largest_lower_bound(
    event: Event,
    want_lower: bool,
    bound_rest: Callable[[Event], float],
    bound_part: Callable[[Event, int], float],
) -> float:
    """Returns PLD's lower bound: the largest of what is proved about the parts whose phases no data attain, and about
    all the rest.

    Such parts, for instance shuffled passes, are counted by more than they cost. What they cost at least is what they say
    themselves. Of the rest the phases are attained, unless something of the kind is deeper inside: then nothing is proved.
    """
    if not want_lower:
        return 0.0
    # What a part proves by itself is a lower bound for the whole, because more releases can only cost more.
    best, rest = 0.0, []
    for part, count in event_counts(canonical(event)):
        if part.is_tight:
            rest.append(Repeat(part, count))
        else:
            best = max(best, bound_part(part, count))
    # Only of parts whose dominating pair is attained by some data, the composition of pairs is a lower bound too.
    if not rest or not _is_tight(Together(*rest)):
        return best
    return max(best, bound_rest(Together(*rest)))


def _is_tight(event: Event) -> bool:
    """Returns whether some data attain the phases of all that is in an event."""
    return all(inner.is_tight for inner in event.walk())


def _depends_on_delta(phases: Phases) -> bool:
    """Returns whether a phase was resolved for one δ only, as passes of balls in bins are."""
    return any(sampled.pair.depends_on_delta for sampled, _ in phases)
