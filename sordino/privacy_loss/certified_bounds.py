"""Certified bounds on ε and δ of phases in one direction: a search for the best setting, and what it is held against.

Every setting gives an upper bound that holds; the smallest counts. The lower bound comes from other settings, and both
have to agree with what `consistency` knows by other means.

**Privacy:** a search only decides how tight the bounds are. Bounds that contradict each other are not returned.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache

from sordino.privacy_loss.closed_forms import find_lone_gaussian, one_release_epsilon
from sordino.privacy_loss.composed_bounds import Setting, choose_setting, compose_lower_bound, compose_upper_bound
from sordino.privacy_loss.consistency import (
    COARSE,
    LONGEST_CHECK,
    MOST_PARTS,
    lower_composed_delta,
    lower_part_epsilon,
    lower_part_epsilons,
    markov_delta,
    markov_epsilon,
)
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.saddle import (
    Estimate,
    Phases,
    Saddle,
    has_heavy_jumps,
    jump_limit,
    locate_with_jumps,
    saddle_near,
)
from sordino.privacy_loss.soundness import require_at_most
from sordino.privacy_loss.tail_sums import BELOW
from sordino.privacy_loss.tilted_windows import LONGEST

CUT = 1e-5  # share of δ that truncated tails may cost
_ASTRAY = 0.1  # relative distance between guess and answer at which the guess is improved
_TRIES = 6
_HEAVY_LENGTH = 1 << 20
_GAP = 8e-4  # relative gap at which one lower bound is enough
SENSELESS, _SHORT = 1000.0, 1 << 19  # ε that protects nobody, and the transform that is long enough for it
_LEAST_LOG_DELTA, _LEAST_DELTA = -690.0, 1e-280


def directions(phases: Phases) -> tuple[bool, ...]:
    """Returns the directions to account for: removing a record (False), and adding one (True) unless that is the same."""
    return (False,) if all(sampled.symmetric for sampled, _ in phases) else (False, True)


def largest_loss_when_adding(phases: Phases) -> float:
    """Returns the largest loss of all phases when a record is added, −log(1−q) for each sampled release: a certified
    bound on ε in that direction.
    """
    return math.fsum(
        count * -math.log1p(-sampled.rate) if sampled.rate < 1 and not sampled.subset else math.inf
        for sampled, count in phases
    )


def _is_surely_zero(phases: Phases, delta: float) -> bool:
    """Returns whether ε is certified to be 0, because δ(0) is at most the sum of the single releases' total variations."""
    total = 0.0
    for sampled, count in phases:
        total += count * sampled.rate * sampled.pair.total_variation()
    return total <= delta


def sum_part_epsilons(phases: Phases, delta: float, tolerance: float, low: float, high: float) -> float:
    """Returns the sum of the phases' certified ε when they share δ equally, which is a bound on the whole by basic
    composition.
    """
    if not 1 < len(phases) <= MOST_PARTS:
        return math.inf
    # at all of δ each, and from below: known already, and mostly enough
    if high <= math.fsum(lower_part_epsilon(sampled, count, False, delta) for sampled, count in phases):
        return math.inf
    share = delta / len(phases)
    total = math.inf
    # A coarse sum first, and a finer one only if it may turn out smaller than the bound that is known.
    for accuracy in (COARSE, tolerance):
        total = math.fsum(_bound_phase_epsilon(sampled, count, share, accuracy) for sampled, count in phases)
        require_at_most(low, total, "a composition, and the sum of its parts")
        if high < (1 - 2 * COARSE) * total:
            break
    return total


@lru_cache(maxsize=4096)
def _bound_phase_epsilon(sampled: Sampled, count: int, delta: float, tolerance: float) -> float:
    """Returns a certified upper bound on ε of one phase alone."""
    phases: Phases = ((sampled, count),)
    if find_lone_gaussian(phases) is not None:
        return one_release_epsilon(sampled, delta)
    high = 0.0
    for add in directions(phases):
        if not add or largest_loss_when_adding(phases) > high:
            high = max(high, bound_epsilon(phases, add, delta, tolerance, None, LONGEST_CHECK)[1])
    return high


def bound_epsilon(
    phases: Phases, add: bool, delta: float, tolerance: float, known: float | None, longest: int = LONGEST
) -> tuple[float, float]:
    """Returns certified lower and upper bounds on ε of phases in one direction; the lower one is worth more than
    `known`, if that is given.
    """
    if _is_surely_zero(phases, delta):
        return 0.0, 0.0
    # A saddle point says where the answer is about; it decides how tight the bounds are, not whether they hold.
    cut = CUT * delta / sum(count for _, count in phases)
    estimate = Estimate(phases, add, cut)
    saddle = estimate.at_delta(delta)
    heavy = has_heavy_jumps(phases, add, cut, delta, estimate, saddle.theta)
    search = _EpsilonSearch(phases, add, cut, delta, tolerance)
    longest = longest if saddle.epsilon < SENSELESS else min(longest, _SHORT)
    search.run(estimate, saddle, min(_HEAVY_LENGTH, longest) if heavy else longest)
    # Where rare large losses made that difficult, compose again with the jumps apart.
    if heavy and (search.ever_astray or search.longest >= _HEAVY_LENGTH // 2):
        apart = locate_with_jumps(phases, add, cut, delta)
        if apart is not None:
            search.run(*apart, longest)
    # The upper bound must not be below what one part alone costs.
    if add and known is None:
        return 0.0, search.high  # parts were looked at when the record was removed, which mostly costs more
    floor = max(lower_part_epsilons(phases, add, delta, saddle.theta, cut))
    require_at_most(floor, search.high, "one part of a composition, and the whole of it")
    if known is None:
        return floor, search.high
    # Lower bounds at other settings, the best of the search first, until they are close enough to the upper bound.
    low, ceiling = max(floor, known), markov_epsilon(phases, add, delta)
    if 0 < search.high < math.inf:
        for bound, setting in sorted(search.settings, key=lambda pair: pair[0]):
            if search.high - low <= _GAP * search.high:
                break
            other_setting = setting.for_lower_bound(min(bound, 2 * search.high))
            low = max(low, compose_lower_bound(phases, add, other_setting, longest).epsilon(delta))
    if low > known:
        require_at_most(low, ceiling, "a composition, and what Markov's inequality allows it")
    return low, min(search.high, ceiling)


class _EpsilonSearch:
    """Upper bounds on ε at several settings; every one of them holds, the smallest counts."""

    def __init__(self, phases: Phases, add: bool, cut: float, delta: float, tolerance: float) -> None:
        self.phases, self.add, self.cut, self.delta, self.tolerance = phases, add, cut, delta, tolerance
        self.high = math.inf
        self.settings: list[tuple[float, Setting]] = []
        self.astray = self.ever_astray = False
        self.longest = 0

    def run(self, estimate: Estimate, saddle: Saddle, longest: int) -> None:
        """Searches for the best certified upper bound on ε: composes at a saddle point, and again nearer to the answer
        as long as the guess was bad.
        """
        guess = saddle.epsilon
        for attempt in range(_TRIES):
            # Every setting gives an upper bound that holds; the smallest is kept.
            setting = choose_setting(self.phases, self.add, saddle, estimate.std, self.cut, self.tolerance)
            bound = compose_upper_bound(self.phases, self.add, setting, longest)
            self.longest = max(self.longest, bound.length)
            epsilon = bound.epsilon(self.delta)
            self.high = min(self.high, epsilon)
            self.settings.append((epsilon, setting))
            # The guess was bad if the answer is far from it, or below what this tilt resolves.
            resolved = epsilon > max(0.0, bound.floor)
            far_off = abs(guess - epsilon) > _ASTRAY * max(epsilon, 0.1 * estimate.std)
            self.astray = epsilon > 0 and (not resolved or far_off)
            if not self.astray or math.isinf(epsilon):
                break
            self.ever_astray = True
            guess = epsilon if resolved else (0.25 * min(guess, epsilon) if attempt < _TRIES - 2 else 0.0)
            saddle = saddle_near(estimate, guess, self.delta)


def bound_delta(phases: Phases, add: bool, epsilon: float, tolerance: float, want_lower: bool) -> tuple[float, float]:
    """Returns certified lower and upper bounds on δ of phases in one direction."""
    steps = sum(count for _, count in phases)
    # How large δ is about; it decides how much of the tails may be cut off, which changes the estimate again.
    last_log_delta, cut = -23.0, 1e-17 / steps
    for _ in range(6):
        estimate = Estimate(phases, add, cut)
        saddle = estimate.at_epsilon(epsilon)
        log_delta = min(0.0, max(_LEAST_LOG_DELTA, saddle.log_delta))
        cut = max(math.exp(log_delta) * CUT / steps, 1e-300)
        if abs(log_delta - last_log_delta) < 0.5:
            break
        last_log_delta = log_delta
    # One setting for all losses, and one with rare large losses apart where they matter.
    settings = [choose_setting(phases, add, saddle, estimate.std, cut, tolerance)]
    if has_heavy_jumps(phases, add, cut, math.exp(log_delta), estimate, saddle.theta):
        limit = jump_limit(phases, add, cut, math.exp(log_delta))
        bulk = Estimate(phases, add, cut, limit)
        if bulk.jumps:
            apart = saddle_near(bulk, epsilon, math.exp(log_delta))
            settings.append(choose_setting(phases, add, apart, bulk.std, cut, tolerance))
    if estimate.mean > epsilon:
        # below the mean loss a slight tilt is enough, and a strong one would not resolve ε
        settings = [replace(one, theta=min(one.theta, 0.5 * BELOW / (estimate.mean - epsilon))) for one in settings]
    # Every setting gives bounds that hold; the best count.
    low, high = 0.0, 1.0
    furthest = max(float(loss.max()) for loss, _, _ in estimate.parts)
    longest = _HEAVY_LENGTH if max(epsilon, abs(estimate.mean), furthest) < SENSELESS else _SHORT
    for setting in settings:
        high = min(high, compose_upper_bound(phases, add, replace(setting, centre=epsilon), longest).delta(epsilon))
        if want_lower:
            low = max(low, compose_lower_bound(phases, add, setting.for_lower_bound(epsilon), longest).delta(epsilon))
    # They have to agree with what single parts and Markov's inequality say.
    floor = lower_composed_delta(phases, add, epsilon, saddle.theta, cut)
    _require_agreement(max(low, floor), high)
    if not want_lower:
        return floor, high
    low, ceiling = max(low, floor), markov_delta(phases, add, epsilon)
    _require_agreement(low, ceiling)
    return low, min(high, ceiling)


def _require_agreement(low: float, high: float) -> None:
    """Raises if a certified lower and upper bound on δ contradict each other, as logarithms: 1e-12 above 1e-15 is a
    contradiction too.
    """
    if low > _LEAST_DELTA:
        require_at_most(
            math.log(low), math.log(max(high, _LEAST_DELTA)), "logarithms of a lower and an upper bound on δ"
        )
