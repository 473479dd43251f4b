"""Balls in bins: every record in exactly one of t batches, by its own uniform choice. A pair for one whole pass.

Chua et al. 2025 (balls-and-bins sampling), Feldman & Shenfeld 2025 (random allocation). With r_i = dP/dQ of the release
on batch i, the pass has dP/dQ = S/t, S = Σ r_i, so all that is needed is the law of S under Q, and P = (S/t)·Q:

    δ_remove(ε) = E_Q[(S/t − e^ε)₊]        δ_add(ε) = E_Q[(1 − e^ε S/t)₊]

**Privacy:** each r_i is spread over a lattice of r keeping its Q-mass and its mean (its P-mass) in every cell, so the
spread releases can be processed into the true ones, batch by batch, and the pass built from them dominates the true
pass in both directions. One r_i beyond the lattice is kept on a geometric grid, spread alike; two such in one pass are
charged as a total loss, and so is the rounding error of the transform. Bins of r_i, summed, give the lower bound.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.fft import irfft, next_fast_len, rfft

from sordino.accounting.losses.pairs import Array, DiscretePair, Pair
from sordino.accounting.losses.sampled_pairs import Between, SampledPair

_CELLS = 24.0  # lattice cells per standard deviation of the bulk of r
_FEW = 200  # with fewer bins the sum is less smooth, and the lattice finer
_LONGEST = 1 << 20
_GROWTH = 1.01  # of the grid beyond the lattice
_COARSE = 400  # atoms of the other batches' sum, beside a release beyond the lattice
_WIDEST, _FURTHEST = 1e9, 1e25  # ratios that the lattice, and the grid beyond it, may have to reach
_SOLID = 100.0  # times its error, from which on a mass is a bin of its own
_ALIASED = 1e-17  # mass that the transform may have moved from above its end to its beginning
_EPS, _ARITHMETIC = 2.3e-16, 6.0  # see `spectra`


@dataclass(frozen=True, eq=False)
class AllocationPair(Between):
    """One pass as a pair (an upper bound), with the binned pass (a lower bound) beside it."""


@lru_cache(maxsize=64)
def allocation(pair: Pair, bins: int, cut: float) -> AllocationPair:
    """One pass of `bins` releases with this pair; up to `cut` of probability may be given away."""
    limit, last = _limits(pair, bins, cut)
    if limit > _WIDEST or last > _FURTHEST:
        # hardly any noise: sums of ratios this far apart have no lattice. Without amplification, and seen on one batch
        return AllocationPair(pair, SampledPair(getattr(pair, "lower", pair), 1 / bins), pair.symmetric)
    step = _step(pair, limit, bins)
    edges = np.arange(math.ceil(limit / step) + 1) * step
    limit = float(edges[-1])
    q, p, _, _ = _cells(pair, edges)
    small = np.zeros(len(edges))
    up = np.clip((p - q * edges[:-1]) / step, 0.0, q)
    small[1:] += up
    small[:-1] += q - up
    big_r, big_q, infinite = _beyond(pair, limit, last)
    upper = _upper(small, step, big_r, big_q, infinite, bins)
    q, p, beyond_q, beyond_p = _cells(getattr(pair, "lower", pair), edges)
    q[-1] += beyond_q
    p[-1] += beyond_p
    return AllocationPair(upper, _lower(q, p, step, bins))


def _cells(pair: Pair, edges: Array) -> tuple[Array, Array, float, float]:
    """Q- and P-masses of cells of r, the lowest with all below it, and of what lies beyond."""
    with np.errstate(divide="ignore"):
        a, b = pair.masses(np.log(edges))
    q, p = a[1:-1].copy(), b[1:-1].copy()
    q[0] += a[0]
    p[0] += b[0]
    return q, p, float(a[-1]), float(b[-1])


def _limits(pair: Pair, bins: int, cut: float) -> tuple[float, float]:
    """R beyond which two releases of one pass together have P-mass at most cut; r beyond which one has."""
    ratio = pair.native()
    q, p = pair.masses(ratio)
    above_q, above_p = np.cumsum(q[::-1])[::-1][1:], np.cumsum(p[::-1])[::-1][1:]
    both = bins * above_q * above_p + (bins * above_q) ** 2 / 2
    first = float(ratio[min(int(np.argmax(both <= cut)) if (both <= cut).any() else len(ratio) - 1, len(ratio) - 1)])
    last = float(ratio[int(np.argmax(above_p <= cut / 100)) if (above_p <= cut / 100).any() else len(ratio) - 1])
    return math.exp(min(first, 60.0)), math.exp(min(max(last, first), 600.0))


def _step(pair: Pair, limit: float, bins: int) -> float:
    ratio = pair.native()
    q, p = pair.masses(ratio)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        r = np.where(q > 1e-280, p / np.maximum(q, 1e-290), 0.0)[1:-1]
    bulk = r <= limit
    mean = float(q[1:-1][bulk] @ r[bulk])
    std = math.sqrt(max(float(q[1:-1][bulk] @ (r[bulk] - mean) ** 2), 1e-12))
    cells = _CELLS * min(max(math.sqrt(_FEW / bins), 1.0), 12.0)
    return max(std / cells, (bins + 12 * std * math.sqrt(bins) + 4 * limit) / _LONGEST)


def _beyond(pair: Pair, limit: float, last: float) -> tuple[Array, Array, float]:
    """Q-masses on a geometric grid of r from limit to last, and the P-mass left for r = ∞."""
    count = max(2, math.ceil(math.log(max(last / limit, 1.0)) / math.log(_GROWTH)) + 1)
    log_edges = np.linspace(math.log(limit), math.log(max(last, limit * _GROWTH)), count)
    a, b = pair.masses(log_edges)
    r = np.exp(log_edges)
    up = np.clip((b[1:-1] - a[1:-1] * r[:-1]) / np.diff(r), 0.0, a[1:-1])
    q = np.zeros(len(r))
    q[1:] += up
    q[:-1] += a[1:-1] - up
    q[-1] += a[-1]
    return r, q, max(0.0, float(b[-1] - a[-1] * r[-1]))


def _length(small: Array, step: float, bins: int) -> int:
    """Lattice points that hold all but 1e-18 of a sum of `bins` values."""
    r = np.arange(len(small)) * step
    total = float(small.sum())
    mean = float(small @ r) / total
    std = math.sqrt(float(small @ (r - mean) ** 2) / total)
    best = math.inf
    for factor in (0.5, 1.0, 2.0, 4.0, 8.0):
        s = factor / max(std * math.sqrt(bins), r[-1] / 8)
        log_moment = float(np.log(np.sum(small / total * np.exp(s * r))))
        best = min(best, (bins * log_moment + 42.0) / s)
    return int(next_fast_len(max(math.ceil(best / step) + 2, len(small)), real=True))


def _upper(small: Array, step: float, big_r: Array, big_q: Array, infinite: float, bins: int) -> DiscretePair:
    length = _length(small, step, bins)
    spectrum = rfft(small, length)
    others = np.maximum(irfft(spectrum ** (bins - 1), length), 0.0) if bins > 1 else _point(length)
    whole = np.maximum(irfft(spectrum**bins, length), 0.0)
    sums = np.arange(length) * step
    # exactly one release beyond the lattice
    coarse_r, coarse_q = _coarsen(sums, others)
    one_r = np.add.outer(big_r, coarse_r).ravel()
    one_q = bins * np.multiply.outer(big_q, coarse_q).ravel()
    s = np.concatenate((sums, one_r))
    q = np.concatenate((whole, one_q))
    order = np.argsort(s, kind="stable")
    s, q = s[order], q[order]
    p = q * s / bins
    # every mass of the transform is off by at most eps·log₂(n)·t·(largest mass); P weighs it by S/t
    noise = _EPS * math.log2(length) * float(whole.max()) * length * float(sums[-1]) + 1e-18
    missing_p = max(0.0, 1.0 - float(p.sum()))
    missing_q = max(0.0, 1.0 - float(q.sum()))
    positive = (s > 0) & (q > 0)
    lost = missing_q + float(q[s == 0].sum())
    with np.errstate(divide="ignore"):
        values = np.log(s[positive] / bins)
    return DiscretePair(values, p[positive], q[positive], max(missing_p, infinite) + noise, lost)


def _point(length: int) -> Array:
    result = np.zeros(length)
    result[0] = 1.0
    return result


def _coarsen(sums: Array, mass: Array) -> tuple[Array, Array]:
    """The law of a sum, spread over fewer points without changing the mean in any cell."""
    used = np.flatnonzero(mass > 1e-22)
    low, high = int(used[0]), int(used[-1])
    if high - low < _COARSE:
        return sums[low : high + 1], mass[low : high + 1]
    points = np.unique(np.linspace(low, high, _COARSE).astype(np.int64))
    grid = sums[points]
    cell = np.clip(np.searchsorted(points, np.arange(len(mass)), side="right") - 1, 0, len(points) - 2)
    share = np.clip((sums - grid[cell]) / (grid[cell + 1] - grid[cell]), 0.0, 1.0)
    result = np.bincount(cell, mass * (1 - share), len(points)) + np.bincount(cell + 1, mass * share, len(points))
    return grid, np.asarray(result, dtype=np.float64)


def _lower(q: Array, p: Array, step: float, bins: int) -> DiscretePair:
    length = _length(q, step, bins)
    q_spectrum = rfft(q, length)
    q_sum = irfft(q_spectrum**bins, length)
    p_sum = irfft(q_spectrum ** (bins - 1) * rfft(p, length), length)
    # every mass is off by this at most: against us on both sides
    size = np.abs(q_spectrum) + _EPS * (math.log2(length) + _ARITHMETIC)
    each = _EPS * (math.log2(length) + _ARITHMETIC) * (bins * size ** (bins - 1) + size**bins)
    off = 2 * float(each.sum()) / length
    q_sum, p_sum = np.maximum(q_sum, 0.0) + off, np.maximum(p_sum - off, 0.0)
    # P[sum ≥ j] against Q[sum ≥ j] decides; where masses are hardly more than their errors, everything is one bin
    solid = np.flatnonzero((q_sum > _SOLID * off) & (p_sum > _SOLID * off))
    if not len(solid):
        return DiscretePair(np.zeros(1), np.ones(1), np.ones(1))
    first, last = int(solid[0]), int(solid[-1])
    q_bins, p_bins = q_sum[first : last + 1].copy(), p_sum[first : last + 1].copy()
    q_bins[-1] += float(q_sum[last + 1 :].sum()) + _ALIASED
    p_bins[-1] += float(p_sum[last + 1 :].sum())
    q_bins[0] += float(q_sum[:first].sum())
    p_bins[0] += float(p_sum[:first].sum())
    q_bins, p_bins = np.maximum(q_bins, 1e-300), np.maximum(p_bins, 1e-300)
    values = np.log(p_bins) - np.log(q_bins)
    order = np.argsort(values, kind="stable")
    return DiscretePair(values[order], p_bins[order], q_bins[order])
