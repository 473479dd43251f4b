"""Consistency checks: bounds on a composition by other means, with which its result is compared.

At the same δ a composition costs at least what any one of its phases costs (the others can be thrown away), and what
one single release costs. It costs at most what Markov's inequality says of e^{θL}, and at most the sum of its phases'
ε when they share δ (basic composition; Dwork et al. 2006).

**Privacy:** all of these are certified. A result outside of them is a contradiction and is not returned: `soundness`.
Lattices here are coarser than, and independent of, those of the result.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache

from sordino.privacy_loss.closed_forms import find_lone_gaussian, one_release_delta, one_release_epsilon
from sordino.privacy_loss.composed_bounds import Setting, choose_setting, compose_lower_bound, round_up_phases
from sordino.privacy_loss.lattice import Mesh, Sampled
from sordino.privacy_loss.saddle import Estimate, Phases, Saddle
from sordino.privacy_loss.tilted_windows import Cumulant

COARSE = 4e-3  # tolerance of bounds that only serve as a check
MOST_PARTS = 8  # phases looked at one by one; of more, those that weigh most
LONGEST_CHECK = 1 << 18  # points of their transforms
_TILTS = (0.5, 0.7, 0.85, 1.0, 1.2, 1.5, 2.0)  # of the saddle point's
_TYPICAL_DELTA = 1e-10
_CUT = 1e-5  # share of δ that truncated tails may cost


def find_heaviest_phases(phases: Phases, add: bool, theta: float, cut: float) -> Phases:
    """Returns the phases that a consistency check looks at: all phases, or of many the ones that add most to K(θ)."""
    if len(phases) <= MOST_PARTS:
        return phases
    weigh = Estimate(phases, add, cut).cumulant_shares(theta)
    return tuple(phases[k] for k in sorted(range(len(phases)), key=lambda k: -weigh[k])[:MOST_PARTS])


def lower_part_epsilons(phases: Phases, add: bool, delta: float, theta: float, cut: float) -> list[float]:
    """Returns lower bounds on ε of single phases at δ for a consistency check: the composition certainly reaches the
    largest of them.
    """
    if len(phases) == 1:
        return [_release_epsilon(phases[0][0], add, delta)]
    return [
        lower_part_epsilon(sampled, count, add, delta)
        for sampled, count in find_heaviest_phases(phases, add, theta, cut)
    ]


def lower_composed_delta(phases: Phases, add: bool, epsilon: float, theta: float, cut: float) -> float:
    """Returns a δ that the composition certainly reaches at ε, for a consistency check of bounds on δ."""
    parts = find_heaviest_phases(phases, add, theta, cut)
    if len(phases) == 1:
        return _release_delta(phases[0][0], add, epsilon)
    return max(_lower_part_delta(sampled, count, add, epsilon) for sampled, count in parts)


def _find_attained_release(sampled: Sampled, add: bool) -> Sampled | None:
    """Returns, for a consistency check, one release in closed form that a real dataset attains; of a fixed-size subset,
    in one direction only.
    """
    if sampled.subset and not add:
        sampled = Sampled(sampled.pair, sampled.rate)
    return find_lone_gaussian(((sampled, 1),))


def _release_epsilon(sampled: Sampled, add: bool, delta: float) -> float:
    """Returns ε of one single release that a dataset attains, or 0 if none is known in closed form."""
    one = _find_attained_release(sampled, add)
    return 0.0 if one is None else one_release_epsilon(one, delta, add)


def _release_delta(sampled: Sampled, add: bool, epsilon: float) -> float:
    """Returns δ of one single release that a dataset attains, or 0 if none is known in closed form."""
    one = _find_attained_release(sampled, add)
    return 0.0 if one is None else one_release_delta(one, epsilon, add)


def _part_setting(phases: Phases, add: bool, delta: float, place: Callable[[Estimate], Saddle]) -> Setting:
    """Returns a coarse lattice and a tilt for the consistency check of one phase, about the place in question."""
    cut = _CUT * delta / phases[0][1]
    estimate = Estimate(phases, add, cut)
    return choose_setting(phases, add, place(estimate), estimate.std, cut, COARSE, measured=False)


@lru_cache(maxsize=4096)
def lower_part_epsilon(sampled: Sampled, count: int, add: bool, delta: float) -> float:
    """Returns a lower bound on ε of one phase, for a consistency check; zero where one attempt proves none."""
    phases: Phases = ((sampled, count),)
    alone = _release_epsilon(sampled, add, delta)
    if find_lone_gaussian(phases) is not None:
        return alone
    setting = _part_setting(phases, add, delta, lambda estimate: estimate.at_delta(delta))
    return max(alone, compose_lower_bound(phases, add, setting, LONGEST_CHECK).epsilon(delta))


@lru_cache(maxsize=4096)
def _lower_part_delta(sampled: Sampled, count: int, add: bool, epsilon: float) -> float:
    """Returns a lower bound on δ of one phase, for a consistency check; zero where one attempt proves none."""
    phases: Phases = ((sampled, count),)
    alone = _release_delta(sampled, add, epsilon)
    if find_lone_gaussian(phases) is not None:
        return alone
    setting = _part_setting(phases, add, _TYPICAL_DELTA, lambda estimate: estimate.at_epsilon(epsilon))
    return max(alone, compose_lower_bound(phases, add, replace(setting, centre=epsilon), LONGEST_CHECK).delta(epsilon))


def markov_epsilon(phases: Phases, add: bool, delta: float) -> float:
    """Returns Markov's bound ε = min over θ of (K(θ) + log(1/δ))/θ, a consistency check of a composition, for losses
    rounded up on a lattice of its own.
    """
    cumulant, infinite, theta = _coarse_cumulant(phases, add, delta, None)
    if delta <= infinite:
        return math.inf
    need = -math.log(delta - infinite)
    return max(0.0, min((cumulant(factor * theta) + need) / (factor * theta) for factor in _TILTS))


def markov_delta(phases: Phases, add: bool, epsilon: float) -> float:
    """Returns Markov's bound δ = min over θ of e^{K(θ) − θε}, a consistency check of a composition, for losses rounded
    up on a lattice of its own.
    """
    cumulant, infinite, theta = _coarse_cumulant(phases, add, _TYPICAL_DELTA, epsilon)
    log_delta = min(cumulant(factor * theta) - factor * theta * epsilon for factor in _TILTS)
    return min(1.0, infinite + math.exp(min(log_delta, 0.0)))


def _coarse_cumulant(phases: Phases, add: bool, delta: float, epsilon: float | None) -> tuple[Cumulant, float, float]:
    """Returns what Markov's bound, a consistency check, needs: K of losses rounded up on a coarse lattice, the mass of
    infinite losses, and a tilt near the answer.
    """
    steps = sum(count for _, count in phases)
    cut = _CUT * delta / steps
    estimate = Estimate(phases, add, cut)
    saddle = estimate.at_delta(delta) if epsilon is None else estimate.at_epsilon(epsilon)
    step = math.sqrt(12 * COARSE * max(saddle.epsilon, 1e-2 * estimate.std) / (steps * (saddle.theta + 1)))
    mesh = Mesh(step, 1.5 * math.sqrt(1 / (6 * COARSE)), cut)
    parts, infinite = round_up_phases(phases, add, mesh)
    return Cumulant(parts, mesh.step), infinite, saddle.theta
