"""The best of a random number of runs, by privacy profiles: δ(ε) of the winner from δ(ε) of one run.

After Koskela, Redberg & Wang 2024, derived again and without their choice of one point of the profile. K is the number of
runs, φ(z) = E[z^K]. A run gives an outcome y with a score; Q(≤y) is the chance that it is no better than y. Then

    P[winner ≤ y] = φ(Q(≤y)),    so  A(y) = ∫₀¹ Q(y) φ'(q_t) dt,    q_t = Q(<y) + t Q(y)

On the neighbouring data the same, with Q' and q'_t, which is the chance of the *same* (randomised) set of worse outcomes.
With x = 1 − q and x' = 1 − q', one run's profile δ bounds x' ≤ T(x) = min_ε̂ [e^ε̂ x + δ(ε̂)]. φ' increases, so

    A(y) − e^ε A'(y) ≤ ∫₀¹ [φ'(1−x) Q(y) − e^ε φ'(1−T(x)) Q'(y)] dt ≤ e^ε Q'(y) F(e^−ε Q(y)/Q'(y))
    F(r) = sup_x max(0, φ'(1−x) r − φ'(1−T(x)))

F is convex, zero at 0 and has slope at most φ'(1) = E[K]: it is an average of (r − ρ)₊ with weights w, so that

    δ_A(ε) ≤ Σ_j w_j δ(ε + ln ρ_j),    Σ w_j = E[K].

Near the best outcomes (x small) T(x) is small too and nothing is lost but the factor E[K]; elsewhere φ' is small.
The supremum over x is taken cell by cell, with φ'(1−x) at the lower and φ'(1−T(x)) at the upper edge.

**Privacy:** only the winner is released, and the score by which it won is part of each run. K is secret. Valid for any
order of the outcomes, ties broken by any rule that is the same for both data sets.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from sordino.privacy_loss.pairs import Array
from sordino.privacy_loss.stopping import expected_runs

_CELLS = 20_000
_SMALLEST = 1e-12
"""Of x: cells are equal in ln x above it."""
_ROUNDING = 1e-9
"""Of δ: some ten thousand positive terms are added in float64."""
_FINE = 2_000
"""Points of the profile between its own, for T."""


_LARGEST_EXPONENT = 700.0
"""Beyond it an exponential overflows."""
_TOGETHER = 500
"""Values of x that are looked at at once, for memory."""


class Runs(Protocol):
    """How many runs there are, by its generating function."""

    def slope(self, x: Array) -> Array:
        """Returns φ'(1 − x), which falls from E[K] at x = 0."""
        ...


@dataclass(frozen=True)
class PoissonRuns:
    """K ~ Poisson(mean); no run at all is an outcome like others, worse than all."""

    mean: float

    def slope(self, x: Array) -> Array:
        """Returns m·exp(−m x)."""
        return np.asarray(self.mean * np.exp(-self.mean * x))


@dataclass(frozen=True)
class NegativeBinomialRuns:
    """K ~ truncated negative binomial, K ≥ 1; shape 1 is geometric, shape 0 logarithmic."""

    shape: float
    stop: float

    def slope(self, x: Array) -> Array:
        """Returns E[K]·(γ / (γ + (1 − γ) x))^(η+1)."""
        mean = expected_runs(self.shape, self.stop)
        return np.asarray(mean * (self.stop / (self.stop + (1 - self.stop) * x)) ** (self.shape + 1))


@dataclass(frozen=True, eq=False)
class Profile:
    """δ of one run at some ε ≥ 0, ascending, from above; between them as convexity in e^ε allows, so from above too."""

    epsilons: Array
    deltas: Array

    @staticmethod
    def from_function(delta_of: Callable[[float], float], most: float, points: int = 128) -> Profile:
        """Evaluates the privacy profile δ(ε) of one run of a selection at equal distances from 0 to `most`."""
        epsilons = np.linspace(0.0, most, points)
        deltas = np.array([min(1.0, delta_of(float(epsilon))) for epsilon in epsilons])
        return Profile(epsilons, np.minimum.accumulate(deltas))

    def __call__(self, epsilon: Array) -> Array:
        """Returns δ at any ε, from above.

        Between two points of the profile δ is taken from the chord in e^ε, which lies above a convex function; beyond the
        last point it is the last δ. Below zero δ(ε) = 1 − e^ε + e^ε δ(−ε) of the two directions, the larger of which is
        known.
        """
        # A profile is known at some ε only. It is convex in e^ε, so the chord between two points lies above it.
        size = np.abs(epsilon)
        if len(self.epsilons) == 1:
            positive = np.full(np.shape(size), self.deltas[0])
        else:
            right = np.clip(np.searchsorted(self.epsilons, size, side="right"), 1, len(self.epsilons) - 1)
            low, high = self.epsilons[right - 1], self.epsilons[right]
            # (e^ε − e^low)/(e^high − e^low) in a form in which no exponential overflows, whatever ε is
            inside = np.minimum(size, high)
            with np.errstate(under="ignore", invalid="ignore", divide="ignore"):
                share = np.exp(inside - high) * np.expm1(low - inside) / np.expm1(low - high)
            share = np.where(high > low, share, 1.0)
            positive = self.deltas[right - 1] + share * (self.deltas[right] - self.deltas[right - 1])
        # δ(−ε) follows from δ(ε) by exchanging the two datasets: δ(−ε) = 1 − e^{−ε} + e^{−ε} δ(ε).
        down = np.minimum(epsilon, 0.0)
        return np.where(epsilon >= 0, positive, -np.expm1(down) + np.exp(down) * positive)

    def largest_neighbouring_chance(self, x: Array) -> Array:
        """Returns T(x), the largest chance, on the neighbouring data, of a set of one run's outputs that has chance x
        here; the bound on a selection's winner uses it.
        """
        epsilons = np.linspace(0.0, float(self.epsilons[-1]), _FINE)
        # a factor of e^700 exceeds 1/x for every x looked at, and T(x) is never above one
        factors, deltas = np.exp(np.minimum(epsilons, _LARGEST_EXPONENT)), self(epsilons)
        best = np.full(len(x), 1.0)
        for start in range(0, len(x), _TOGETHER):
            some = x[start : start + _TOGETHER, None] * factors + deltas
            best[start : start + _TOGETHER] = np.minimum(some.min(axis=1), 1.0)
        return best


@dataclass(frozen=True, eq=False)
class Winner:
    """The bound on the best of K runs with one profile, prepared for every ε."""

    profile: Profile
    weights: Array  # w_j
    shifts: Array  # ln ρ_j

    @staticmethod
    def from_profile(profile: Profile, runs: Runs) -> Winner:
        """Returns the bound on the winner of a selection from the profile of one run, with F written as an average of
        hinges.
        """
        edges = np.concatenate([[0.0], np.geomspace(_SMALLEST, 1.0, _CELLS)])
        slopes = runs.slope(edges[:-1])  # at the lower edge, descending
        depths = runs.slope(profile.largest_neighbouring_chance(edges[1:]))  # at the upper edge
        weights, corners = _find_hinges(slopes[::-1], depths[::-1])
        return Winner(profile, weights, np.log(corners))

    def delta(self, epsilon: float) -> float:
        """Returns an upper bound on δ at this ε."""
        return min(1.0, (1 + _ROUNDING) * float(self.weights @ self.profile(epsilon + self.shifts)))

    def epsilon(self, delta: float, most: float) -> float:
        """Returns the smallest ε up to `most` at which the winner of a selection meets δ; infinity where none is."""
        if self.delta(most) > delta:
            return math.inf
        low, high = 0.0, most
        if self.delta(low) <= delta:
            return 0.0
        while high - low > 1e-5 * max(1.0, high):
            middle = (low + high) / 2
            low, high = (low, middle) if self.delta(middle) <= delta else (middle, high)
        return high


def _find_hinges(slopes: Array, depths: Array) -> tuple[Array, Array]:
    """Returns the hinges of which a selection's F is an average: weights w and corners ρ with Σ w (r − ρ)₊ = max(0, s r
    − d) over lines of ascending slope s.
    """
    kept = [(0.0, 0.0)]  # slope and depth of the lines of the envelope, from the line 0 on
    corners: list[float] = []  # where each takes over from the one before it
    for slope, depth in zip(slopes.tolist(), depths.tolist(), strict=True):
        if slope <= kept[-1][0] and depth >= kept[-1][1]:
            continue  # as steep as the last, and no higher
        while corners and (slope <= kept[-1][0] or (depth - kept[-1][1]) <= corners[-1] * (slope - kept[-1][0])):
            kept.pop()
            corners.pop()
        corners.append(max(0.0, (depth - kept[-1][1]) / (slope - kept[-1][0])))
        kept.append((slope, depth))
    steps = np.diff([slope for slope, _ in kept])
    return steps, np.maximum(np.array(corners), np.finfo(float).tiny)
