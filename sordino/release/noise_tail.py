"""The δ that finite noise can support: generated noise ends, which costs a little δ.

Beyond the end of its values a neighbour can be ruled out, and this module bounds how likely that is.

Gaussian noise comes in pairs whose radius has P(r > R) = p = 2⁻⁶⁴, R = √(2·64·ln 2) = 9.42, and ends there
(rng/normals.py). A record moves the sum by v, in units of the noise's deviation, ‖v‖ ≤ s = 1/multiplier, aⱼ of it in
pair j of m. What it moves out of the reach of the neighbour's noise is at most the mass with R − aⱼ < rⱼ ≤ R in some pair:

    β ≤ Σⱼ p·(exp(aⱼR − aⱼ²/2) − 1) ≤ p·(√m·sR + exp(sR − s²/2) − 1 − sR)      for s < R − ¼; else β ≤ 1

for Σ aⱼ ≤ √m·s, and what is left of the exponential, over a², grows with a. Within reach the densities are those of the
theorem but for one factor, the same for both neighbours, below 1 + 2mp. So a release that is (ε, δ)-DP with noise without
end is (ε, δ·(1 + 2mp) + β)-DP with ours, and over a run both add up. Sampling can only make β smaller; that is not used, so
for several copies of a record the bound is a loose one. Laplace values end at 54·ln 2 of their scale, by 53 bits:
β ≤ ½·2⁻⁵⁴·(exp(s) − 1), s = 1/scale in L1. A choice among k ends as its k Gumbel values do: (1 + exp(ε))·k·2⁻⁶⁵.

Privacy: this is what is missing at the end of the noise. Between its values lies floating point's grid, about which the
theorems say nothing (docs/claims.md).
"""

from __future__ import annotations

import math
from typing import Final

from scipy.special import gammainc

from sordino import events
from sordino.events import Event, Relation

RADIUS_BITS: Final = 64
"""The smallest uniform value behind a radius is 2 to minus this."""
LAPLACE_BITS: Final = 54
CHOICE_BITS: Final = 65

MOST_COORDINATES: Final = 1 << 34
"""The most coordinates of one release: the random streams give no more at once."""
_MOST_CANDIDATES = 1 << 31  # more than the records of any dataset here
_BEYOND = 2.0**-RADIUS_BITS
_END = math.sqrt(2 * RADIUS_BITS * math.log(2))
_NEAR = 0.25  # this close to the end the bound is not used: nearly everything is out of reach
_ROOM = 1.125  # from one share of a projected clip that is looked at to the next


def delta_of_noise_end(event: Event, delta: float, relation: Relation, coordinates: int = MOST_COORDINATES) -> float:
    """Returns what the end of our noise adds to δ over an event whose releases have at most so many coordinates.

    >>> from sordino.events import Gaussian, Poisson, Repeat
    >>> run = Repeat(Poisson(0.01, Gaussian(1.0)), 10_000)
    >>> f"{delta_of_noise_end(run, 1e-5, Relation.ADD_OR_REMOVE, 10**7):.1e}"
    '1.6e-11'
    """
    moves = 2 if relation is Relation.REPLACE else 1
    return min(1.0, _delta_of_event(event, delta, moves, max(2, coordinates)))


def _delta_of_event(event: Event, delta: float, moves: int, d: int) -> float:
    """Returns the bound for one event whose record moves a sum by `moves` sensitivities, in `d` coordinates.

    Composition adds the bounds of its parts up. Sampling could only make them smaller, which is not used.
    """
    match event:
        # Compositions: the bounds of the parts add up.
        case events.Together(events=inner):
            return math.fsum(_delta_of_event(part, delta, moves, d) for part in inner)
        case events.Repeat(event=inner, count=count):
            return count * _delta_of_event(inner, delta, moves, d)
        # Releases: each kind of noise has an end of its own.
        case events.Gaussian(multiplier=sigma):
            return _delta_of_gaussian(moves / sigma, delta, d)
        case events.ProjectedClip(multiplier=sigma, projections=r):
            return _delta_of_projected_clip(moves / sigma, r, delta, d)
        case events.Laplace(scale=scale):
            return _expm1_or_inf(moves / scale) * 2.0**-LAPLACE_BITS / 2
        case events.Exponential(epsilon=epsilon):
            return (2 + _expm1_or_inf(moves * epsilon)) * _MOST_CANDIDATES * 2.0**-CHOICE_BITS
        # Events around others change how far a record moves the sum, or how many releases it meets.
        case events.Mixture(weights=weights, events=inner):
            return math.fsum(w * _delta_of_event(part, delta, moves, d) for w, part in zip(weights, inner, strict=True))
        case events.Group(event=inner, size=size):
            return _delta_of_event(inner, delta, moves * size, d)
        case events.TruncatedPoisson(event=inner):  # a record that comes in may push another out
            return _delta_of_event(inner, delta, 2 * moves, d)
        case events.Shuffle(event=inner):
            return _delta_of_pass(inner, delta, moves, d)
        case events.TunePoisson(event=inner, mean=mean):
            return mean * _delta_of_event(inner, delta, moves, d)
        case events.TuneNegativeBinomial(event=inner, shape=shape, stop=stop):
            return _expected_runs(shape, stop) * _delta_of_event(inner, delta, moves, d)
        case _:  # sampling around a release, or a mechanism whose noise is not made here
            return math.fsum(_delta_of_event(part, delta, moves, d) for part in events.children(event))


def _delta_of_gaussian(s: float, delta: float, d: int) -> float:
    """Returns the bound β + 2mpδ of the module's formula for one Gaussian release."""
    if s >= _END - _NEAR:
        return 1.0
    pairs = (d + 1) // 2
    one = math.expm1(s * _END - s * s / 2) - s * _END
    return _BEYOND * (math.sqrt(pairs) * s * _END + one + 2 * pairs * delta)


def _delta_of_projected_clip(s: float, r: int, delta: float, d: int) -> float:
    """Returns the mean of the Gaussian's bound over the record's ρ = √(r/χ²_r), rounded up to a few values."""
    total, beyond, share = 0.0, 1.0, 1.0
    while beyond > 0:
        probability_beyond = float(gammainc(r / 2, r / (2 * share**2)))  # P(ρ > share)
        delta_at_share = _delta_of_gaussian(s * share, delta, d)
        total += (beyond - probability_beyond) * delta_at_share
        if delta_at_share == 1.0:
            return total + probability_beyond
        beyond, share = probability_beyond, share * _ROOM
    return total


def _delta_of_pass(event: Event, delta: float, moves: int, d: int) -> float:
    """Returns the bound for one pass over the data, of which a record meets one release.

    One of each kind is counted.
    """
    inner = events.canonical(event)
    units = inner.events if isinstance(inner, events.Together) else (inner,)
    kinds = {unit.event if isinstance(unit, events.Repeat) else unit for unit in units}
    return math.fsum(_delta_of_event(kind, delta, moves, d) for kind in kinds)


def _expected_runs(shape: float, stop: float) -> float:
    """Returns the mean of the truncated negative binomial distribution."""
    if shape == 0:
        return (1 / stop - 1) / math.log(1 / stop) if stop < 1 else 1.0
    return shape * (1 - stop) / (stop * -math.expm1(shape * math.log(stop))) if stop < 1 else 1.0


def _expm1_or_inf(x: float) -> float:
    return math.expm1(x) if x < 700 else math.inf
