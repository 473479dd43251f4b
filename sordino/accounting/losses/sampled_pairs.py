"""Pairs that are mixtures already: Poisson sampling seen by a pair of records, by a group, or inside a mixture.

Replace-one under Poisson sampling: (1−q)N(0)+qN(1) against (1−q)N(0)+qN(−1) (Lebeda et al. 2024; dp_accounting).
A group of k records: Σ Binomial(k,q)(i)·N(i) against N(0) (Ganesh 2024). Several releases on one draw: the product.

**Privacy:** `product` spreads every factor over a lattice of λ so that the cell masses under P and under Q are both
kept: the spread pair can be processed into the original one, whichever of the two stands first.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammaln, ndtr

from sordino.accounting.losses.lattice import Sampled, base_ratio, sampled_loss
from sordino.accounting.losses.pairs import TAIL, Array, DiscretePair, Pair, differences

_NATIVE = 1200
_BISECTIONS = 80
_PRODUCT_CELLS = 48  # per standard deviation of the narrowest factor
_LONGEST_PRODUCT = 200_000


@dataclass(frozen=True)
class PoissonReplacePair:
    """(1−q)N(0)+qN(μ) against (1−q)N(0)+qN(−μ)."""

    rate: float
    mu: float
    symmetric: bool = field(default=True, init=False)

    def _z(self, edges: Array) -> Array:
        # e^λ = (1−q+c·y)/(1−q+c/y) with y = e^{μz}, c = q·e^{−μ²/2}:  log y = λ/2 + asinh((1−q)sinh(λ/2)/c)
        half = np.abs(edges) / 2
        with np.errstate(divide="ignore"):
            log_sinh = half + np.log(-np.expm1(-2 * half)) - math.log(2)
            log_s = log_sinh + math.log((1 - self.rate) / self.rate) + self.mu**2 / 2
        arc = np.where(log_s > 300, log_s + math.log(2), np.arcsinh(np.exp(np.minimum(log_s, 300.0))))
        return np.sign(edges) * (half + arc) / self.mu

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """See `Pair`."""
        z, q = self._z(edges), self.rate
        none = differences(ndtr(z), ndtr(-z))
        low = differences(ndtr(z + self.mu), ndtr(-z - self.mu))
        high = differences(ndtr(z - self.mu), ndtr(self.mu - z))
        return (1 - q) * none + q * low, (1 - q) * none + q * high

    def native(self) -> Array:
        """See `Pair`."""
        z = np.linspace(-TAIL - self.mu, TAIL + self.mu, _NATIVE + 8 * int(min(self.mu, 1000.0)))
        half = self.mu**2 / 2
        return sampled_loss(self.rate, self.mu * z - half) - sampled_loss(self.rate, -self.mu * z - half)


@dataclass(frozen=True)
class GroupPair:
    """Σᵢ wᵢ N(iμ) against N(0), i ~ Binomial(size, rate): a whole group under Poisson sampling."""

    rate: float
    mu: float
    size: int
    symmetric: bool = field(default=False, init=False)

    def _weights(self) -> Array:
        i = np.arange(self.size + 1)
        log_choose = gammaln(self.size + 1) - gammaln(i + 1) - gammaln(self.size - i + 1)
        log_miss = math.log1p(-self.rate) if self.rate < 1 else -1e9
        return np.asarray(log_choose + i * math.log(self.rate) + (self.size - i) * log_miss)

    def _ratio(self, z: Array) -> Array:
        i = np.arange(self.size + 1)[:, None]
        exponent = self._weights()[:, None] + i * self.mu * z - (i * self.mu) ** 2 / 2
        top = exponent.max(axis=0)
        return np.asarray(top + np.log(np.exp(exponent - top).sum(axis=0)))

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """See `Pair`."""
        far = TAIL + 2 + self.size * self.mu
        low, high = np.full(len(edges), -far), np.full(len(edges), far)
        for _ in range(_BISECTIONS):
            middle = (low + high) / 2
            left = self._ratio(middle) <= edges
            low, high = np.where(left, middle, low), np.where(left, high, middle)
        z = (low + high) / 2
        p = np.zeros(len(edges) + 1)
        for i, log_weight in enumerate(self._weights()):
            p += math.exp(log_weight) * differences(ndtr(z - i * self.mu), ndtr(i * self.mu - z))
        return differences(ndtr(z), ndtr(-z)), p

    def native(self) -> Array:
        """See `Pair`."""
        return np.unique(self._ratio(np.linspace(-TAIL, TAIL + self.size * self.mu, _NATIVE)))


@dataclass(frozen=True)
class SampledPair:
    """A Poisson-sampled pair as a pair of its own, to be mixed with others."""

    pair: Pair
    rate: float
    symmetric: bool = field(default=False, init=False)

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """See `Pair`."""
        q, p = self.pair.masses(base_ratio(self.rate, edges))
        return q, (1 - self.rate) * q + self.rate * p

    def native(self) -> Array:
        """See `Pair`."""
        edges = sampled_loss(self.rate, self.pair.native())
        return np.unique(np.concatenate((edges, [edges[0] - 1e-12])))


def spread(pair: Pair, step: float, low: int, high: int) -> DiscretePair:
    """The pair on the lattice step·{low, …, high}, both masses of every cell kept, tails sent to 0 and ∞."""
    edges = np.arange(low, high + 1) * step
    a, b = pair.masses(edges)
    inner_a, inner_b, ratio = a[1:-1], b[1:-1], np.exp(edges)
    # Q-mass u at the upper edge: (A − u)r₀ + u·r₁ = B
    up = np.clip((inner_b - inner_a * ratio[:-1]) / np.diff(ratio), 0.0, inner_a)
    q = np.zeros(len(edges))
    q[1:] += up
    q[:-1] += inner_a - up
    lowest = min(b[0] / ratio[0], a[0])
    q[0] += lowest
    q[-1] += a[-1]
    p = q * ratio
    infinite = max(0.0, float(b[-1] - a[-1] * ratio[-1]))
    return DiscretePair(edges, p, q, infinite, float(a[0] - lowest))


def product(parts: Sequence[tuple[Pair, int]]) -> DiscretePair:
    """Independent releases on the same draw as one pair: λ adds up."""
    natives = [(Sampled(pair).native(False, 1e-40), pair, count) for pair, count in parts]
    step = min(native.std for native, _, _ in natives) / _PRODUCT_CELLS
    width = sum((native.high - native.low) * count for native, _, count in natives)
    step = max(step, width / _LONGEST_PRODUCT)
    result: DiscretePair | None = None
    for native, pair, count in natives:
        low, high = math.floor(native.low / step) - 1, math.ceil(native.high / step) + 1
        factor = spread(pair, step, low, high)
        for _ in range(count):
            result = factor if result is None else _convolve(result, factor, step)
    assert result is not None
    return result


def _convolve(first: DiscretePair, second: DiscretePair, step: float) -> DiscretePair:
    start = round(first.values[0] / step) + round(second.values[0] / step)
    p, q = np.convolve(first.p, second.p), np.convolve(first.q, second.q)
    return DiscretePair(
        (start + np.arange(len(p))) * step,
        p,
        q,
        1 - (1 - first.infinite) * (1 - second.infinite),
        1 - (1 - first.lost) * (1 - second.lost),
    )
