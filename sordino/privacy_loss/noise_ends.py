"""The end of generated noise: how much δ it costs that the values of each kind of noise end somewhere.

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

**Privacy:** this is what is missing at the end of the noise. Between its values lies floating point's grid, about which the
theorems say nothing (docs/claims.md).
"""

from __future__ import annotations

import math
from typing import Final

RADIUS_BITS: Final = 64
"""The smallest uniform value behind a radius is 2 to minus this."""
LAPLACE_BITS: Final = 54
CHOICE_BITS: Final = 65
GAUSSIAN_END: Final = math.sqrt(2 * RADIUS_BITS * math.log(2))
"""R, the largest radius of a pair of Gaussian values."""

_MOST_CANDIDATES = 1 << 31  # more than the records of any dataset here
_BEYOND = 2.0**-RADIUS_BITS
_NEAR = 0.25  # this close to the end the bound is not used: nearly everything is out of reach


def gaussian_end(shift: float, delta: float, coordinates: int) -> float:
    """Returns what the end of generated noise costs in δ where the noise is Gaussian, β + 2mpδ of the formula above,
    for a release that moves by `shift` standard deviations.
    """
    if shift >= GAUSSIAN_END - _NEAR:
        return 1.0
    pairs = (coordinates + 1) // 2
    one_pair = math.expm1(shift * GAUSSIAN_END - shift * shift / 2) - shift * GAUSSIAN_END
    return _BEYOND * (math.sqrt(pairs) * shift * GAUSSIAN_END + one_pair + 2 * pairs * delta)


def laplace_end(shift: float) -> float:
    """Returns β for a Laplace release that moves by `shift` scales in L1."""
    return _expm1_or_infinity(shift) * 2.0**-LAPLACE_BITS / 2


def choice_end(epsilon: float) -> float:
    """Returns β for a choice by the exponential mechanism, whatever the number of candidates."""
    return (2 + _expm1_or_infinity(epsilon)) * _MOST_CANDIDATES * 2.0**-CHOICE_BITS


def _expm1_or_infinity(x: float) -> float:
    """Returns e^x − 1, or infinity where that is no float."""
    return math.expm1(x) if x < 700 else math.inf
