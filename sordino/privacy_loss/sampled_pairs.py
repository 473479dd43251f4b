"""Pairs that are mixtures already: Poisson sampling seen by a pair of records, by a group, or inside a mixture.

Replace-one under Poisson sampling: (1−q)N(0)+qN(1) against (1−q)N(0)+qN(−1) (Lebeda et al. 2024; dp_accounting).
A group of k records: Σ Binomial(k,q)(i)·N(i) against N(0) (Ganesh 2024). Several releases on one draw: the product.

**Privacy:** `make_product_pair` spreads every factor over a lattice of λ so that the cell masses under P and under Q are
both kept: the spread pair can be processed into the original one, whichever of the two stands first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammaln, ndtr

from sordino.privacy_loss.lattice import Sampled, base_ratio, sampled_loss
from sordino.privacy_loss.pairs import TAIL, Array, DiscretePair, Pair, cell_masses_from_tails, resolving_points

_NATIVE = 1200
_BISECTIONS = 80
_OVERFLOW = 700.0
_PRODUCT_CELLS = 48  # per standard deviation of the narrowest factor
_LONGEST_PRODUCT = 200_000


@dataclass(frozen=True)
class PoissonReplacePair(Pair):
    """(1−q)N(0)+qN(μ) against (1−q)N(0)+qN(−μ)."""

    rate: float
    mu: float
    symmetric: bool = field(default=True, init=False)

    def _z_at_loss(self, edges: Array) -> Array:
        # e^λ = (1−q+c·y)/(1−q+c/y) with y = e^{μz}, c = q·e^{−μ²/2}:  log y = λ/2 + asinh((1−q)sinh(λ/2)/c)
        """Returns the output z at which the sampled replace-one pair has each log-ratio, by inverting the ratio in
        closed form.
        """
        half = np.abs(edges) / 2
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
            log_s = log_sinh + math.log((1 - self.rate) / self.rate) + self.mu**2 / 2
        arc = np.where(log_s > 300, log_s + math.log(2), np.arcsinh(np.exp(np.minimum(log_s, 300.0))))
        return np.sign(edges) * (half + arc) / self.mu

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ for the replace-one pair of a Poisson-sampled Gaussian."""
        z, q = self._z_at_loss(edges), self.rate
        none = cell_masses_from_tails(ndtr(z), ndtr(-z))
        low = cell_masses_from_tails(ndtr(z + self.mu), ndtr(-z - self.mu))
        high = cell_masses_from_tails(ndtr(z - self.mu), ndtr(self.mu - z))
        return (1 - q) * none + q * low, (1 - q) * none + q * high

    def native_edges(self) -> Array:
        """Returns edges of λ that resolve the replace-one pair of a Poisson-sampled Gaussian."""
        z = resolving_points((-self.mu, 0.0, self.mu), _NATIVE // 2)
        half = self.mu**2 / 2
        return sampled_loss(self.rate, self.mu * z - half) - sampled_loss(self.rate, -self.mu * z - half)


@dataclass(frozen=True)
class GroupPair(Pair):
    """Σᵢ wᵢ N(iμ) against N(0), i ~ Binomial(size, rate): a whole group under Poisson sampling."""

    rate: float
    mu: float
    size: int
    symmetric: bool = field(default=False, init=False)

    def _weights(self) -> Array:
        """Returns logarithms of the binomial weights of a group's sampled pair: how many records of the group take
        part.
        """
        i = np.arange(self.size + 1)
        log_choose = gammaln(self.size + 1) - gammaln(i + 1) - gammaln(self.size - i + 1)
        log_miss = math.log1p(-self.rate) if self.rate < 1 else -1e9
        return np.asarray(log_choose + i * math.log(self.rate) + (self.size - i) * log_miss)

    def _ratio(self, z: Array) -> Array:
        """Returns the log-ratio of a group's sampled pair, the mixture against N(0), at outputs z."""
        i = np.arange(self.size + 1)[:, None]
        exponent = self._weights()[:, None] + i * self.mu * z - (i * self.mu) ** 2 / 2
        top = exponent.max(axis=0)
        return np.asarray(top + np.log(np.exp(exponent - top).sum(axis=0)))

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ for the sampled pair of a group of records."""
        # λ rises with the observation z, so the place of each edge on the axis of z is found by bisection.
        far = TAIL + 2 + self.size * self.mu
        low, high = np.full(len(edges), -far), np.full(len(edges), far)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            left = self._ratio(middle) <= edges
            low, high = np.where(left, middle, low), np.where(left, high, middle)
        # Under Q nobody of the group is drawn. Under P the number of members that are drawn is binomial, and each moves
        # the mean by μ.
        z = (low + high) / 2
        p = np.zeros(len(edges) + 1)
        for i, log_weight in enumerate(self._weights()):
            p += math.exp(log_weight) * cell_masses_from_tails(ndtr(z - i * self.mu), ndtr(i * self.mu - z))
        return cell_masses_from_tails(ndtr(z), ndtr(-z)), p

    def native_edges(self) -> Array:
        """Returns edges of λ that resolve the sampled pair of a group of records."""
        centres = self.mu * np.arange(self.size + 1)
        edges = np.unique(self._ratio(resolving_points([float(centre) for centre in centres], _NATIVE // 2)))
        return np.insert(edges, 0, edges[0] - 1e-9 * max(abs(float(edges[0])), 1e-9))


@dataclass(frozen=True)
class SampledPair(Pair):
    """A Poisson-sampled pair as a pair of its own, to be mixed with others."""

    pair: Pair
    rate: float
    symmetric: bool = field(default=False, init=False)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ."""
        q, p = self.pair.masses(base_ratio(self.rate, edges))
        return q, (1 - self.rate) * q + self.rate * p

    def native_edges(self) -> Array:
        """Returns edges that resolve the pair."""
        edges = sampled_loss(self.rate, self.pair.native_edges())
        return np.unique(np.concatenate((edges, [edges[0] - 1e-12])))


@dataclass(frozen=True, eq=False)
class Directed(Pair):
    """Two pairs: one bounds what is seen when a record is removed, the other what is seen when it is added."""

    removing: Pair
    adding: Pair
    symmetric: bool = False

    def for_direction(self, add: bool) -> Pair:
        """Returns the pair for one direction."""
        return self.adding if add else self.removing

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ."""
        return self.removing.masses(edges)

    def native_edges(self) -> Array:
        """Returns edges that resolve the pair."""
        return self.removing.native_edges()


@dataclass(frozen=True, eq=False)
class Between(Pair):
    """A pair that dominates the true one, for upper bounds, with one that the true one dominates, for lower bounds."""

    upper: Pair
    lower: Pair
    symmetric: bool = False

    def lower_pair(self) -> Pair:
        """Returns the pair for lower bounds."""
        return self.lower

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ."""
        return self.upper.masses(edges)

    def native_edges(self) -> Array:
        """Returns edges that resolve the pair."""
        return self.upper.native_edges()


def spread_over_lattice(pair: Pair, step: float, low: int, high: int) -> tuple[Array, Array, float, float]:
    """Spreads one pair of a product on one sampled draw over the lattice step·{low, …, high} and keeps both masses of
    every cell; tails are sent to 0 and ∞.

    P- and Q-masses, and what P and Q have elsewhere. Splits are written with the smaller of both masses on top of the
    larger one, so that no exponential leaves the floating range.
    """
    edges = np.arange(low, high + 1) * step
    a, b = pair.masses(edges)
    inner_a, inner_b, width = a[1:-1], b[1:-1], -math.expm1(-step)
    falling, rising = np.exp(-np.maximum(edges, 0.0)), np.exp(np.minimum(edges, 0.0))
    # λ ≤ 0: Q-mass u at the upper edge from (A − u)r₀ + u·r₁ = B; λ > 0: P-mass likewise
    ratio = np.exp(np.minimum(edges[1:], step))
    grow = width * ratio
    with np.errstate(over="ignore", under="ignore", divide="ignore", invalid="ignore"):
        up_q = np.clip((inner_b - inner_a * rising[:-1]) / grow, 0.0, inner_a)
        positive = np.where(edges[:-1] > 0, inner_a * np.exp(np.minimum(edges[:-1], _OVERFLOW)), 0.0)
        up_p = np.clip((inner_b - np.minimum(positive, inner_b)) / width, 0.0, inner_b)
    # Cells below zero are split by their Q-mass, cells above zero by their P-mass; the other mass follows from the ratio.
    above = edges[:-1] > 0
    p, q = np.zeros(len(edges)), np.zeros(len(edges))
    low_q = np.where(above, 0.0, up_q)
    q[1:] += low_q
    q[:-1] += np.where(above, 0.0, inner_a - up_q)
    p[1:] += low_q * ratio
    p[:-1] += np.where(above, 0.0, (inner_a - up_q) * rising[:-1])
    high_p = np.where(above, up_p, 0.0)
    p[1:] += high_p
    p[:-1] += np.where(above, inner_b - up_p, 0.0)
    q[1:] += high_p * falling[1:]
    q[:-1] += np.where(above, (inner_b - up_p) * falling[:-1], 0.0)
    # What lies below the lattice goes to its lowest point, what lies above to its highest, as far as both masses allow.
    lowest = min(b[0] / max(rising[0], 1e-300), a[0])
    q[0] += lowest
    p[0] += b[0]
    kept = min(float(a[-1]) * math.exp(min(float(edges[-1]), _OVERFLOW)), float(b[-1]))
    p[-1] += kept
    q[-1] += a[-1]
    return p, q, max(0.0, float(b[-1]) - kept), max(0.0, float(a[0] - lowest))


def make_product_pair(parts: Sequence[tuple[Pair, int]]) -> Between:
    """Returns independent releases on one sampled draw as one product pair, as the λ of the releases add up: spread
    above, binned below.
    """
    # A lattice that resolves the narrowest factor and on which the product is not too long.
    natives = [(Sampled(pair).native_losses(False, 1e-40), pair, count) for pair, count in parts]
    step = min(native.std for native, _, _ in natives) / _PRODUCT_CELLS
    width = sum((native.high - native.low) * count for native, _, count in natives)
    step = max(step, width / _LONGEST_PRODUCT)
    # Two products are kept: one that spreads masses upwards, for upper bounds, and one that bins them, for lower ones.
    p, q, binned_p, binned_q = (np.ones(1) for _ in range(4))
    start, finite, kept = 0, 1.0, 1.0
    for native, pair, count in natives:
        low, high = math.floor(native.low / step) - 1, math.ceil(native.high / step) + 1
        spread_p, spread_q, infinite, lost = spread_over_lattice(pair, step, low, high)
        bin_q, bin_p = pair.lower_pair().masses(np.arange(low, high + 1) * step)
        # Independent releases: masses convolve, and what was cut off each of them multiplies.
        start += count * low
        finite, kept = finite * (1 - infinite) ** count, kept * (1 - lost) ** count
        for _ in range(count):
            p, q = np.convolve(p, spread_p), np.convolve(q, spread_q)
            binned_p, binned_q = np.convolve(binned_p, bin_p), np.convolve(binned_q, bin_q)
    values = (start + np.arange(len(p))) * step
    upper = DiscretePair(values, p, q, 1 - finite, 1 - kept)
    return Between(upper, _make_pair_of_bins(binned_p, binned_q))


def _make_pair_of_bins(p: Array, q: Array) -> DiscretePair:
    """Returns the product pair of releases on one sampled draw from the masses of bins, ordered by ratio; Q from above
    where floats end.
    """
    q = np.maximum(q, 1e-290)
    keep = p > 1e-290
    rest = float(q[~keep].sum())
    p, q = p[keep], q[keep]
    values = np.log(p) - np.log(q)
    order = np.argsort(values, kind="stable")
    return DiscretePair(values[order], p[order], q[order], 0.0, rest)
