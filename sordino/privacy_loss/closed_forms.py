"""Compositions with a closed form: Gaussians only, one sampled Gaussian release, and pure ε at δ = 0.

One Poisson-sampled Gaussian release (Balle, Barthe & Gaboardi 2018), with δ_G the profile of the Gaussian mechanism:

    removing   q·δ_G(log(1 + (e^ε − 1)/q))
    adding     c·δ_G(log(e^ε q/c)),  c = 1 − e^ε(1−q), as long as c > 0

**Privacy:** exact, not only bounds.
"""

from __future__ import annotations

import math

from sordino.privacy_loss.gaussian import gaussian_delta, gaussian_epsilon
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.pairs import GaussianPair
from sordino.privacy_loss.saddle import Phases

_BISECTIONS = 200


def find_lone_gaussian(phases: Phases) -> Sampled | None:
    """Returns the only phase, if it is one release of a Gaussian, sampled or not, and so has a closed form; otherwise
    None.
    """
    if len(phases) != 1 or phases[0][1] != 1:
        return None
    sampled = phases[0][0]
    return sampled if isinstance(sampled.pair, GaussianPair) and not sampled.subset else None


def one_release_delta(sampled: Sampled, epsilon: float, add: bool | None = None) -> float:
    """Returns the closed form of δ at ε ≥ 0 of one sampled release of a Gaussian, in one direction or the larger of
    both.
    """
    assert isinstance(sampled.pair, GaussianPair)
    mu, q = sampled.pair.mu, sampled.rate
    if q == 1.0:
        return gaussian_delta(mu, epsilon)
    inner = math.log1p(math.expm1(epsilon) / q) if epsilon < 700 else epsilon - math.log(q)
    removing = q * gaussian_delta(mu, inner) if add is not True else 0.0
    c = -math.expm1(epsilon + math.log1p(-q)) if epsilon + math.log1p(-q) < 0 else 0.0
    adding = c * gaussian_delta(mu, epsilon + math.log(q / c)) if c > 0 and add is not False else 0.0
    return max(removing, adding)


def one_release_epsilon(sampled: Sampled, delta: float, add: bool | None = None) -> float:
    """Returns ε at δ of one sampled release of a Gaussian by its closed form, rounded up; in one direction or the
    larger of both.
    """
    assert isinstance(sampled.pair, GaussianPair)
    # Without sampling the Gaussian's own closed form applies.
    if sampled.rate == 1.0:
        return gaussian_epsilon(sampled.pair.mu, delta)
    if one_release_delta(sampled, 0.0, add) <= delta:
        return 0.0
    # Sampling never costs more than no sampling, so that ε is above the answer.
    low, high = 0.0, gaussian_epsilon(sampled.pair.mu, delta)
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if one_release_delta(sampled, middle, add) > delta else (low, middle)
    return high


def pure_epsilon(phases: Phases) -> float:
    """Returns the closed form of ε at δ = 0, the sum of the largest losses of all phases; infinite unless every release
    is purely private.
    """
    total = 0.0
    for sampled, count in phases:
        largest_loss = sampled.pair.largest_loss()
        total += count * (math.log1p(sampled.rate * math.expm1(largest_loss)) if largest_loss < 700 else largest_loss)
    return total
