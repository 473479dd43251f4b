"""Reading δ(ε) off composed lattice masses: sums over all losses above a point, with every error charged.

The masses come tilted (see `compose`); they are untilted around a centre near the answer, so that δ keeps its relative
precision however small it is.

**Privacy:** `Curve` is an upper bound on δ(ε): nothing is subtracted, and rounding, aliasing and what lies above the
part kept are added. `Suffix` gives P[≥ j] and Q[≥ j] of binned outputs with their errors, for the lower bound.
"""

from __future__ import annotations

import math

import numpy as np

from sordino.accounting.losses.compose import Composed
from sordino.accounting.losses.pairs import Array

BELOW = 14.0  # e-folds of the untilted sum kept below the centre
_ABOVE = 27.0  # and above, when tilts are moderate
_BLOCK = 300.0  # losses per block when summing e^{−loss}


def above(theta: float) -> float:
    """E-folds of the untilted sum kept above the centre; more when δ is a small part of it."""
    return _ABOVE + math.log1p(theta)


class Curve:
    """δ(ε) of one composition, from above, read off its lattice masses without cancellation.

    With E_j = Σ_{i≥j} p_i e^{l_j − l_i}:  δ(l_j) = δ(l_{j+1}) + (1 − e^{−h})E_{j+1}, all terms positive.
    """

    def __init__(self, composed: Composed, centre: float, outside: float) -> None:
        theta, step = composed.theta, composed.step
        # only losses around the centre matter: far above, nothing is left; far below, floating range ends
        low = max(0, math.floor((centre - BELOW / theta) / step) - composed.first - 1)
        high = min(len(composed.masses), math.ceil((centre + above(theta) / theta) / step) - composed.first + 2)
        low = min(low, len(composed.masses) - 2)
        high = max(high, low + 2)
        self.loss = (composed.first + np.arange(low, high)) * step
        self.log_scale = composed.log_total - theta * centre
        weight = np.exp(np.clip(-theta * (self.loss - centre), -700.0, BELOW + 5))
        untilted = composed.masses[low:high] * weight
        self.share = _echo(untilted, step)  # E_j
        self.height = np.append(np.cumsum((-math.expm1(-step) * self.share[1:])[::-1])[::-1], 0.0)
        # a mass error e at l_i counts e·w_i(1 − e^{ε − l_i}); mass outside the window at most w/(1+θ), above
        # `high` at most e^{−above}
        rounding = composed.error * weight_sum(theta, step)
        self.slack = (rounding + 2 * outside / (1 + theta)) * weight + 1e-13 * self.height + math.exp(-above(theta))

    def delta(self, epsilon: float) -> float:
        """δ at ε, scaled by e^{log_scale}; NaN below the part resolved."""
        j = int(np.searchsorted(self.loss, epsilon))
        if j >= len(self.loss):
            return float(self.slack[-1] + self.height[-1])
        if j == 0 and epsilon < self.loss[0]:
            return math.nan
        inside = -math.expm1(epsilon - float(self.loss[j])) * float(self.share[j])
        return float(self.height[j]) + inside + float(self.slack[max(j - 1, 0)])


def _echo(masses: Array, step: float) -> Array:
    """E_j = Σ_{i≥j} p_i e^{−h(i−j)}, block by block so that no exponential leaves the floating range."""
    size = max(1, int(_BLOCK / step))
    result = np.empty_like(masses)
    carry = 0.0
    for start in range((len(masses) - 1) // size * size, -1, -size):
        block = masses[start : start + size]
        decay = np.exp(-step * np.arange(len(block)))
        sums = np.cumsum((block * decay)[::-1])[::-1]
        # the carry is E at the first point after the block
        result[start : start + size] = (sums + carry * (decay[-1] * math.exp(-step))) / decay
        carry = float(result[start])
    return result


def weight_sum(theta: float, step: float) -> float:
    """Σ_{m≥1} e^{−θhm}(1 − e^{−hm}), and one more term for the cell in which ε lies."""
    first, second = -math.expm1(-theta * step), -math.expm1(-(theta + 1) * step)
    return math.exp(-theta * step) * -math.expm1(-step) / (first * second) - math.expm1(-step)


class Suffix:
    """Σ of masses from each lattice point on, with a bound on its error; scaled by e^{log_scale}."""

    def __init__(self, composed: Composed, centre: float, outside: float) -> None:
        theta, step = composed.theta, composed.step
        low = max(0, math.floor((centre - BELOW / theta) / step) - composed.first - 1)
        low = min(low, len(composed.masses) - 2)
        self.first = composed.first + low
        loss = (self.first + np.arange(len(composed.masses) - low)) * step
        weight = np.exp(np.clip(-theta * (loss - centre), -700.0, BELOW + 5))
        self.log_scale = composed.log_total - theta * centre
        self.mass = np.cumsum((composed.masses[low:] * weight)[::-1])[::-1]
        geometric = 1 / -math.expm1(-theta * step)
        self.slack = (composed.error * geometric + 2 * outside) * weight + 1e-14 * self.mass

    def at(self, start: int, stop: int) -> tuple[Array, Array]:
        """Sums and errors for the indices start … stop−1, start not before `first`."""
        a, b = start - self.first, min(stop - self.first, len(self.mass))
        pad = max(0, stop - start - max(b - a, 0))
        mass = np.concatenate((self.mass[a : max(a, b)], np.zeros(pad)))
        slack = np.concatenate((self.slack[a : max(a, b)], np.full(pad, float(self.slack[-1]))))
        return mass, slack
