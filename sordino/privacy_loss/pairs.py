"""Dominating pairs (P, Q) of single releases, described by the law of λ = log dP/dQ under P and under Q.

Zhu, Dong & Wang 2022. P is the output with the record at its largest contribution, Q the output without it. Everything
later (sampling, lattice, composition) needs only the masses of cells of λ.

**Privacy:** for a sum with noise, the hockey-stick divergence is largest when the record contributes its whole
sensitivity in one direction: a one-dimensional pair. The exponential mechanism uses bounded range (Durfee & Rogers
2019; Dong, Durfee & Rogers 2020): δ(ε') = (1 − e^{(ε'−ε)/2})²/(1 − e^{−ε}), the largest over all ε-bounded-range pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import logsumexp, ndtr

Array = NDArray[np.floating[Any]]

TAIL = 37.5  # standard deviations: the mass beyond is 1e-307
_BETWEEN = 40  # points between densities that do not meet
_GROUPED_TAIL, _GROUPS, _BLOCK = 13.0, 40_000, 2_000_000  # of discrete Gaussians of large σ
_BEYOND = 1e-36  # more than the mass beyond that tail
LARGE_SIGMA, LARGEST_SIGMA = 2000.0, 1e7  # from which on whole numbers are grouped, and up to which they are summed
_NATIVE = 600  # cells of a pair's own grid, used for moments and for choosing the lattice


class Pair:
    """Base of all pairs: the masses under Q and P of cells of λ, and what else is known about a pair.

    A pair needs `symmetric`, `masses` and `native_edges`; it must be hashable. The rest has defaults that are always valid,
    and a pair that knows better says so in its own class.
    """

    no_renyi_divergence: ClassVar[str] = ""
    """Why Rényi divergences of this pair are refused; empty if they are computed."""
    depends_on_delta: ClassVar[bool] = False
    """Whether the pair was resolved for one δ, so that it is made again when δ turns out to be much smaller."""
    renyi_may_be_tighter: ClassVar[bool] = False
    """Whether composing Rényi divergences can give a smaller ε than composing the pair itself."""

    @property
    def symmetric(self) -> bool:
        """Whether (Q, P) has the same law as (P, Q)."""
        raise NotImplementedError

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns Q- and P-masses of (−∞, e₀], (e₀, e₁], …, (e_last, ∞): one more than there are edges."""
        raise NotImplementedError

    def native_edges(self) -> Array:
        """Returns edges that resolve this pair, ascending, holding all but 1e-300 of it."""
        raise NotImplementedError

    def for_direction(self, add: bool) -> Pair:
        """Returns the pair to use for adding or for removing a record, where the two are bounded by different pairs."""
        return self

    def lower_pair(self) -> Pair:
        """Returns a pair that the true one is known to dominate, for lower bounds; a tight pair is its own."""
        return self

    def loss_spacing(self) -> float:
        """Returns the number that all losses are multiples of, or 0 if there is none."""
        return 0.0

    def largest_loss(self) -> float:
        """Returns the largest loss, which is ε at δ = 0; infinity where losses have no bound."""
        return math.inf

    def total_variation(self) -> float:
        """Returns an upper bound on the total variation between P and Q, which is δ at ε = 0."""
        return 1.0

    def renyi_divergence(self, order: float) -> float | None:
        """Returns the Rényi divergence of P from Q at an order, or None if it has to be computed numerically."""
        return None


def cell_masses_from_tails(below: Array, above: Array) -> Array:
    """Returns cell masses from both tails, each cell from the side on which it is accurate."""
    inner = np.where(below[1:] <= 0.5, below[1:] - below[:-1], above[:-1] - above[1:])
    return np.concatenate((below[:1], np.maximum(inner, 0.0), above[-1:]))


def resolving_points(centres: Sequence[float], count: int) -> Array:
    """Returns points that resolve a pair of normal densities around ascending centres, about `count` around each."""
    grid = np.linspace(centres[0] - TAIL, centres[0] + TAIL, count)
    # Stretches around two centres either overlap, and then only the missing part is added, or are joined by a few
    # points.
    for centre in centres[1:]:
        last = float(grid[-1])
        if centre - TAIL > last:
            between = np.linspace(last, centre - TAIL, _BETWEEN)[1:-1]
            around = np.linspace(centre - TAIL, centre + TAIL, count)
        else:
            between = np.empty(0)
            more = max(2, math.ceil((centre + TAIL - last) / (2 * TAIL) * count) + 1)
            around = np.linspace(last, centre + TAIL, more)[1:]
        grid = np.concatenate((grid, between, around))
    return grid


@dataclass(frozen=True)
class GaussianPair(Pair):
    """N(μ, 1) against N(0, 1): λ = μz − μ²/2."""

    mu: float
    symmetric: bool = field(default=True, init=False)

    def total_variation(self) -> float:
        """Returns 2Φ(μ/2) − 1."""
        return math.erf(self.mu / math.sqrt(8))

    def renyi_divergence(self, order: float) -> float:
        """Returns αμ²/2 (Mironov 2017)."""
        return order * self.mu**2 / 2

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ."""
        z = edges / self.mu + self.mu / 2
        return cell_masses_from_tails(ndtr(z), ndtr(-z)), cell_masses_from_tails(ndtr(z - self.mu), ndtr(self.mu - z))

    def native_edges(self) -> Array:
        """Returns edges that resolve the pair."""
        return self.mu * resolving_points((0.0, self.mu), _NATIVE) - self.mu**2 / 2


@dataclass(frozen=True)
class LaplacePair(Pair):
    """Lap(1/ε) moved by one against itself: λ = ε(|x| − |x−1|) in [−ε, ε], with atoms at both ends."""

    epsilon: float
    symmetric: bool = field(default=True, init=False)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ for the pair of a Laplace release."""
        e = self.epsilon
        inside = np.clip(edges, -e, e)
        # λ ≤ t  ⇔  x ≤ (t/ε + 1)/2, for −ε ≤ t < ε
        x = (inside / e + 1) / 2
        above_q = np.where(edges >= e, 0.0, np.where(edges < -e, 1.0, 0.5 * np.exp(-e * x)))
        below_q = np.where(edges >= e, 1.0, np.where(edges < -e, 0.0, -np.expm1(-e * x) / 2 + 0.5))
        below_p = np.where(edges >= e, 1.0, np.where(edges < -e, 0.0, 0.5 * np.exp(e * (x - 1))))
        above_p = np.where(edges >= e, 0.0, np.where(edges < -e, 1.0, -np.expm1(e * (x - 1)) / 2 + 0.5))
        return cell_masses_from_tails(below_q, above_q), cell_masses_from_tails(below_p, above_p)

    def loss_spacing(self) -> float:
        """Returns ε, because the atoms sit at ± ε."""
        return self.epsilon

    def largest_loss(self) -> float:
        """Returns ε."""
        return self.epsilon

    def renyi_divergence(self, order: float) -> float:
        """Returns the Rényi divergence of the Laplace pair, log(α/(2α−1)·e^{(α−1)ε} + (α−1)/(2α−1)·e^{−αε})/(α−1)
        (Mironov 2017).
        """
        e = self.epsilon
        terms = (
            math.log(order / (2 * order - 1)) + (order - 1) * e,
            math.log((order - 1) / (2 * order - 1)) - order * e,
        )
        return float(logsumexp(terms)) / (order - 1)

    def native_edges(self) -> Array:
        """Returns edges that resolve the pair."""
        return np.linspace(-self.epsilon * (1 + 1e-9), self.epsilon * (1 + 1e-9), _NATIVE)


@dataclass(frozen=True)
class BoundedRangePair(Pair):
    """The worst pair of the exponential mechanism: P[λ > s] = (1−u)/(1−e^{−ε}) with u = e^{(s−ε)/2}."""

    epsilon: float
    symmetric: bool = field(default=True, init=False)
    renyi_may_be_tighter: ClassVar[bool] = True
    """The pair is the worst at each ε, and no single mechanism attains it; the worst at each order can be tighter."""

    def largest_loss(self) -> float:
        """Returns ε."""
        return self.epsilon

    def renyi_divergence(self, order: float) -> float:
        """Returns the Rényi divergence of the bounded-range pair: the largest of a pair of two losses t and t−ε, 0 ≤ t
        ≤ ε (Dong, Durfee & Rogers 2020).
        """
        epsilon = self.epsilon
        first = -math.expm1(-order * epsilon)  # (e^ε − e^{−(α−1)ε})·e^{−ε}
        second = -math.expm1(-(order - 1) * epsilon)
        t = min(max(epsilon + math.log((order - 1) * first / (order * second)), 0.0), epsilon)
        inside = first - math.exp(t - epsilon) * second
        whole = -math.expm1(-epsilon)
        log_moment = (order - 1) * t + math.log(max(inside, 1e-300) / whole)
        return min(epsilon, max(0.0, log_moment) / (order - 1))

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ for the bounded-range pair of an exponential mechanism."""
        e = self.epsilon
        s = np.clip(edges, -e, e)
        whole = -math.expm1(-e)
        above_p = -np.expm1((s - e) / 2) / whole
        below_p = np.exp(-e) * np.expm1((s + e) / 2) / whole
        # Q is P mirrored: Q[λ ≤ s] = P[λ ≥ −s]
        below_q = -np.expm1((-s - e) / 2) / whole
        above_q = np.exp(-e) * np.expm1((e - s) / 2) / whole
        return cell_masses_from_tails(below_q, above_q), cell_masses_from_tails(below_p, above_p)

    def native_edges(self) -> Array:
        """Returns edges that resolve the pair."""
        return np.linspace(-self.epsilon * (1 + 1e-9), self.epsilon * (1 + 1e-9), _NATIVE)


@dataclass(frozen=True, eq=False)
class DiscretePair(Pair):
    """Finitely many values of λ with their P- and Q-masses; P may have mass where Q has none (λ = ∞)."""

    values: Array
    p: Array
    q: Array
    infinite: float = 0.0  # P-mass where Q has none
    lost: float = 0.0  # Q-mass where P has none
    symmetric: bool = False
    unit: float = 0.0  # spacing of the values, when they are multiples of it

    def loss_spacing(self) -> float:
        """Returns the spacing of the values, or 0 if they are not multiples of one number."""
        return self.unit

    def largest_loss(self) -> float:
        """Returns the largest loss of a discrete pair of three values (randomised response); infinity for pairs of more
        values, which end only where floats do.
        """
        if self.infinite == 0 and self.lost == 0 and len(self.values) == 3:
            return float(self.values[-1])
        return math.inf

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ for a discrete pair."""
        cut = np.searchsorted(self.values, edges, side="right")
        starts = np.concatenate(([0], cut))
        empty = starts == np.append(cut, len(self.values))
        result = []
        for mass, low, high in ((self.q, self.lost, 0.0), (self.p, 0.0, self.infinite)):
            # sums of positive masses cell by cell keep their relative precision; a cell without values would repeat one
            cells = np.add.reduceat(np.append(mass, 0.0), starts)
            cells[empty] = 0.0
            cells[0] += low
            cells[-1] += high
            result.append(cells)
        return result[0], result[1]

    def native_edges(self) -> Array:
        """Returns edges of λ that resolve a discrete pair."""
        low, high = float(self.values[0]), float(self.values[-1])
        room = 1e-9 * max(abs(low), abs(high), 1e-300)
        if len(self.values) <= _NATIVE:
            middles = (self.values[1:] + self.values[:-1]) / 2
            return np.concatenate(([low - room], middles, [high + room]))
        # half of the edges equally far apart, half of them with equal masses between them
        total = np.cumsum(self.p / max(float(self.p.sum()), 1e-300) + self.q / max(float(self.q.sum()), 1e-300))
        even = self.values[np.searchsorted(total, np.linspace(0.0, 2.0, 2 * _NATIVE)[1:-1])]
        return np.unique(np.concatenate((np.linspace(low - room, high + room, 2 * _NATIVE), even)))


@dataclass(frozen=True)
class MixturePair(Pair):
    """One of several pairs, drawn with public weights; what the weights lack to one is lost (λ = ∞)."""

    weights: tuple[float, ...]
    pairs: tuple[Pair, ...]

    @property
    def symmetric(self) -> bool:
        """Whether every pair is symmetric and nothing is lost."""
        return sum(self.weights) >= 1 - 1e-12 and all(pair.symmetric for pair in self.pairs)

    def lower_pair(self) -> MixturePair:
        """Returns the mixture of what the pairs dominate."""
        return MixturePair(self.weights, tuple(pair.lower_pair() for pair in self.pairs))

    @property
    def lost(self) -> float:
        """The weight of no pair at all."""
        return max(0.0, 1.0 - math.fsum(self.weights))

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ for a mixture of pairs."""
        parts = [pair.masses(edges) for pair in self.pairs]
        q = sum((w * part[0] for w, part in zip(self.weights, parts, strict=True)), np.zeros(len(edges) + 1))
        p = sum((w * part[1] for w, part in zip(self.weights, parts, strict=True)), np.zeros(len(edges) + 1))
        q[0] += self.lost
        p[-1] += self.lost
        return q, p

    def native_edges(self) -> Array:
        """Returns edges of λ that resolve every pair of a mixture."""
        grids = [pair.native_edges() for pair in self.pairs]
        low, high = min(float(g[0]) for g in grids), max(float(g[-1]) for g in grids)
        widest = grids[int(np.argmax([g[-1] - g[0] for g in grids]))]
        return np.unique(np.concatenate((widest, [low, high])))


def response_pair(flip: float, buckets: int) -> DiscretePair:
    """Returns the dominating pair of randomised response: a uniform answer of `buckets` with probability `flip`."""
    other = flip / buckets
    true = 1 - flip + other
    loss = math.log(true / other)
    rest = max(0.0, 1 - true - other)
    masses = np.array([other, rest, true])
    return DiscretePair(np.array([-loss, 0.0, loss]), masses, masses[::-1].copy(), symmetric=True, unit=loss)


def discrete_gaussian_groups(sigma: float, shift: int) -> tuple[DiscretePair, DiscretePair]:
    """Returns dominating pairs that a discrete Gaussian of large σ lies between: whole numbers are taken in groups.

    Sums over each group are exact. For the upper bound the masses of a group are spread over its ends so that P and Q are
    both kept; for the lower bound a group is one output. What lies beyond 13 σ (1e-38) counts as a total loss.
    """
    # Exact sums of both densities over groups of whole numbers, in blocks that fit into memory.
    reach = math.ceil(_GROUPED_TAIL * sigma)
    size = math.ceil(2 * reach / _GROUPS)
    first = -reach + size * np.arange(2 * reach // size + 2)
    q, p = np.empty(len(first)), np.empty(len(first))
    inside = np.arange(size, dtype=np.float64)
    block = max(1, _BLOCK // size)
    for start in range(0, len(first), block):
        x = first[start : start + block, None] + inside
        q[start : start + block] = np.exp(-(x**2) / (2 * sigma**2)).sum(axis=1)
        p[start : start + block] = np.exp(-((x - shift) ** 2) / (2 * sigma**2)).sum(axis=1)
    total = float(q.sum())
    p, q = p / total, q / total
    # For the upper bound, each group is spread over its two ends.
    low = (2.0 * first * shift - shift**2) / (2 * sigma**2)
    width = (size - 1) * shift / sigma**2
    # Q-mass u at the upper end from (A − u) r₀ + u r₁ = B
    up = np.clip((p * np.exp(-low) - q) / math.expm1(width), 0.0, q) if width > 0 else np.zeros(len(q))
    values, order = np.concatenate((low, low + width)), np.argsort(np.concatenate((low, low + width)), kind="stable")
    spread_q = np.concatenate((q - up, up))
    spread_p = spread_q * np.exp(values)
    upper = DiscretePair(values[order], spread_p[order], spread_q[order], _BEYOND, _BEYOND)
    # For the lower bound, each group is one output.
    ratio = np.log(np.maximum(p, 1e-300)) - np.log(np.maximum(q, 1e-300))
    return upper, DiscretePair(ratio, p, q)


def discrete_gaussian_pair(sigma: float, shift: int) -> DiscretePair:
    """Returns the dominating pair of the discrete Gaussian (Canonne, Kamath & Steinke 2020): the noise moved by `shift`
    against itself.
    """
    reach = math.ceil(TAIL * sigma) + shift + 1
    x = np.arange(-reach, reach + shift + 1, dtype=np.float64)
    q = np.exp(-(x**2) / (2 * sigma**2))
    p = np.exp(-((x - shift) ** 2) / (2 * sigma**2))
    values = (2 * x * shift - shift**2) / (2 * sigma**2)
    return DiscretePair(values, p / p.sum(), q / q.sum(), symmetric=True, unit=shift / (2 * sigma**2))
