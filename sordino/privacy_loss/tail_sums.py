"""Reading δ(ε) off composed lattice masses: sums over all losses above a point, with every error charged.

The masses come tilted (see `tilted_windows`); they are untilted around a centre near the answer, so that δ keeps its
relative precision however small it is.

**Privacy:** `Curve` is an upper bound on δ(ε): nothing is subtracted, and rounding, aliasing and what lies above the
part kept are added. `Suffix` gives P[≥ j] and Q[≥ j] of binned outputs with their errors, for the lower bound.
"""

from __future__ import annotations

import math

import numpy as np

from sordino.privacy_loss.pairs import Array
from sordino.privacy_loss.soundness import require_all_finite, require_finite
from sordino.privacy_loss.spectra import EPS, Composed

BELOW = 14.0  # e-folds of the untilted sum kept below the centre
_ABOVE = 27.0  # and above, when tilts are moderate
_UNDERFLOW = 745.0  # e^{−this} is zero in floats
_MOST_EXPONENT, _FURTHEST = 600.0, 400.0  # e-folds that a weight may have, and that are asked for


def efolds_above_centre(theta: float) -> float:
    """Returns the e-folds of the untilted sum kept above the centre; more when δ is a small part of it."""
    return _ABOVE + math.log1p(theta)


def _remove_tilt(composed: Composed, centre: float, below: float = 0.0) -> tuple[int, Array, Array, float]:
    """Returns composed masses' untilting for sums over a tail: the first place kept, the losses from there on, e^{−θ(l
    − centre)}, and the logarithm of the scale.

    Kept are `BELOW` e-folds below the centre, and losses down to `below` as far as floats reach.

    A centre outside the window is moved into it: no weight may be cut off, for that would hide mass.
    """
    theta, step, size = composed.theta, composed.step, len(composed.masses)
    centre = min(max(centre, composed.first * step), (composed.first + size - 1) * step)
    below = max(BELOW / theta, min(below, _FURTHEST / theta))
    least = max(math.floor((centre - below) / step) - 1, math.ceil((centre - _MOST_EXPONENT / theta) / step))
    low = min(max(0, least - composed.first), size - 1)
    loss = (composed.first + np.arange(low, size)) * step
    return low, loss, np.exp(-theta * (loss - centre)), composed.log_total - theta * centre


class Curve:
    """δ(ε) of one composition, from above, read off its lattice masses without cancellation.

    With E_j = Σ_{i≥j} p_i e^{l_j − l_i}:  δ(l_j) = δ(l_{j+1}) + (1 − e^{−h})E_{j+1}, all terms positive.
    """

    def __init__(self, composed: Composed, centre: float, outside: float) -> None:
        theta, step = composed.theta, composed.step
        low, self.loss, weight, self.log_scale = _remove_tilt(composed, centre)
        # only losses around the centre matter: far above, nothing is left; far below, floating range ends
        keep = max(2, math.ceil((efolds_above_centre(theta) + BELOW) / (theta * step)) + 5)
        self.loss, weight = self.loss[:keep], weight[:keep]
        untilted = composed.masses[low : low + len(weight)] * weight
        self.share = _discounted_sums(untilted, step)  # E_j
        self.height = np.append(np.cumsum((-math.expm1(-step) * self.share[1:])[::-1])[::-1], 0.0)
        # a mass error e at l_i counts e·w_i(1 − e^{ε − l_i}); mass outside the window at most w/(1+θ), above
        # the part kept at most e^{−above}; both running sums are of positive terms
        rounding = composed.error * weight_sum(theta, step)
        summing = 4 * EPS * len(weight)
        self.slack = (
            (rounding + 2 * outside / (1 + theta)) * weight
            + summing * self.height
            + math.exp(-efolds_above_centre(theta))
        )
        require_all_finite("an upper bound on δ", self.slack + self.height)
        require_finite("the scale of an upper bound on δ", self.log_scale)

    def delta(self, epsilon: float) -> float:
        """Returns δ at ε from the tail sums of composed masses, scaled by e^{log_scale}; infinite below the part
        resolved.
        """
        j = int(np.searchsorted(self.loss, epsilon))
        if j >= len(self.loss):
            return float(self.slack[-1] + self.height[-1])
        if j == 0 and epsilon < self.loss[0]:
            return math.inf
        inside = -math.expm1(epsilon - float(self.loss[j])) * float(self.share[j])
        return float(self.height[j]) + inside + float(self.slack[max(j - 1, 0)])


def _discounted_sums(masses: Array, step: float) -> Array:
    """Returns discounted tail sums E_j = Σ_{i≥j} p_i e^{−h(i−j)}, from twice as many terms at a time until the next
    would add nothing.
    """
    result = masses.copy()
    reach = 1
    while reach < len(masses) and reach * step < _UNDERFLOW:
        result[:-reach] += math.exp(-reach * step) * result[reach:]
        reach *= 2
    return result


def weight_sum(theta: float, step: float) -> float:
    """Returns Σ_{m≥1} e^{−θhm}(1 − e^{−hm}), and one more term for the cell in which ε lies."""
    first, second = -math.expm1(-theta * step), -math.expm1(-(theta + 1) * step)
    return math.exp(-theta * step) * -math.expm1(-step) / (first * second) - math.expm1(-step)


class Suffix:
    """Σ of masses from each lattice point on, with a bound on its error; scaled by e^{log_scale}."""

    def __init__(self, composed: Composed, centre: float, outside: float, below: float = 0.0) -> None:
        theta, step = composed.theta, composed.step
        low, _, weight, self.log_scale = _remove_tilt(composed, centre, below)
        self.first = composed.first + low
        self.mass = np.cumsum((composed.masses[low:] * weight)[::-1])[::-1]
        geometric = 1 / -math.expm1(-theta * step)
        summing = 2 * EPS * len(weight)
        self.slack = (composed.error * geometric + 2 * outside) * weight + summing * self.mass
        require_all_finite("sums of binned outputs", self.slack + self.mass)
        require_finite("the scale of binned outputs", self.log_scale)

    def sums_between(self, start: int, stop: int) -> tuple[Array, Array]:
        """Returns tail sums (suffix sums of composed masses) and their errors for the indices start … stop−1, start not
        before `first`.
        """
        a, b = start - self.first, min(stop - self.first, len(self.mass))
        pad = max(0, stop - start - max(b - a, 0))
        mass = np.concatenate((self.mass[a : max(a, b)], np.zeros(pad)))
        slack = np.concatenate((self.slack[a : max(a, b)], np.full(pad, float(self.slack[-1]))))
        return mass, slack
