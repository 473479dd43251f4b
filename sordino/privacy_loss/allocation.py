"""Balls in bins: every record in exactly one of t batches, by its own uniform choice. A pair for one whole pass.

Chua et al. 2025 (balls-and-bins sampling), Feldman & Shenfeld 2025 (random allocation). With r_i = dP/dQ of the release
on batch i, the pass has dP/dQ = S/t, S = Σ r_i, so all that is needed is the law of S under Q, and P = (S/t)·Q:

    δ_remove(ε) = E_Q[(S/t − e^ε)₊]        δ_add(ε) = E_Q[(1 − e^ε S/t)₊]

The law of S comes from transforms of the law of r, tilted by e^{θr} at several θ. A transform has the same absolute
error at every point; untilted, that error is e^{K(θ) − θS}, so each point is read off the transform that knows it
best, and tails have relative precision however thin they are.

**Privacy:** each r_i is spread over a lattice of r keeping its Q-mass and its mean (its P-mass) in every cell, so the
spread releases can be processed into the true ones, batch by batch, and the pass built from them dominates the true
pass in both directions. One r_i beyond the lattice is kept on a geometric grid, spread alike; two such in one pass
are charged as a total loss. Every mass of S is known up to an error e: a pair of measures with more P and less Q at
every point has a larger δ, alone and composed, so the bound for removing a record uses (Q + e)S/t against Q − e, and
the bound for adding one Q + e against (Q − e)S/t. Lower bounds use bins of the r_i, summed, with all errors the other
way round; bins that are left out can only lower them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from sordino.privacy_loss.lattice import graded_indices
from sordino.privacy_loss.pairs import Array, DiscretePair, Pair
from sordino.privacy_loss.sampled_pairs import Directed, SampledPair
from sordino.privacy_loss.spectra import SILENT, power

_CELLS = 32.0  # lattice cells per standard deviation of the bulk of r
_FEW = 200  # with fewer bins the sum is less smooth, and the lattice finer
_LONGEST = 1 << 20
_GROWTH = 1.01  # of the grid beyond the lattice
_COARSE = 16.0  # cells per standard deviation of the other batches' sum, beside a release beyond the lattice
_WIDEST, _FURTHEST = 1e9, 1e25  # ratios that the lattice, and the grid beyond it, may have to reach
_SOLID = 1e-3  # relative error up to which a mass is known well enough to be a point of its own
_DEPTHS = (16.0, 36.0, 60.0)  # e-folds of the tail at which the tilted transforms have their centres
_PARTS = (0.5, 0.75, 0.9)  # of the weakest of these tilts, tried as well
_CHERNOFF = (1.0, 1.15, 1.5, 2.5)  # multiples of the tilts at which tails are bounded
_ALIASED = 32.0  # e-folds below the tilted mass that reaches round the end of a transform
_SELDOM = 1e-6  # Q-mass of two ratios beyond the lattice for adding a record: they count as less than they are
_EPS, _ARITHMETIC = 2.3e-16, 6.0  # see `spectra`
_LARGEST_EXPONENT = 700.0
_HALVINGS = 50


@dataclass(frozen=True, eq=False)
class AllocationPair(Pair):
    """One pass as a pair (an upper bound), with the binned pass (a lower bound) beside it; each by direction."""

    upper: Pair
    make_lower: Callable[[], Pair]
    symmetric: bool = False
    no_renyi_divergence: ClassVar[str] = "no Rényi curve is known here for passes of balls in bins; use PLD"
    depends_on_delta: ClassVar[bool] = True

    @cached_property
    def _binned_pass(self) -> Pair:
        """The binned pass, computed when it is first asked for."""
        return self.make_lower()

    def lower_pair(self) -> Pair:
        """Returns the binned pass, which is computed when it is first asked for."""
        return self._binned_pass

    def masses(self, edges: Array) -> tuple[Array, Array]:
        """Returns the Q- and P-masses of the cells of λ."""
        return self.upper.masses(edges)

    def native_edges(self) -> Array:
        """Returns edges that resolve the pair."""
        return self.upper.native_edges()

    def for_direction(self, add: bool) -> Pair:
        """Returns the dominating pair for adding or for removing a record."""
        return self.upper.for_direction(add)


@lru_cache(maxsize=64)
def make_allocation_pair(pair: Pair, bins: int, cut: float) -> AllocationPair:
    """Returns the pair of one balls-in-bins pass (random allocation), each of whose `bins` releases has the given pair;
    up to `cut` of probability may be given away.
    """
    limit, last = _find_limits(pair, bins, cut)
    attained = pair.lower_pair()
    if limit > _WIDEST or last > _FURTHEST:
        # Hardly any noise: sums of ratios this far apart have no lattice. Without amplification, and seen on one batch.
        return AllocationPair(pair, lambda: SampledPair(attained, 1 / bins), pair.symmetric)
    lowest = _find_lowest_ratio(pair, bins, cut)
    # Removing a record is about large S, adding one about small S: each has a lattice of its own.
    fine = min(_choose_step(pair, limit, bins), _find_small_spacing(pair, bins, cut))
    near = min(limit, _find_near_limit(pair, bins))
    removing = _Grid.between(lowest, limit, _choose_step(pair, limit, bins), bins, cut, add=False)
    adding = _Grid.between(lowest, near, max(fine, 4 * (near + bins) / _LONGEST), bins, cut, add=True)
    return AllocationPair(
        Directed(_make_dominating_pair(pair, removing, last), _make_dominating_pair(pair, adding, last)),
        lambda: Directed(_make_dominated_pair(attained, removing, last), _make_dominated_pair(attained, adding, last)),
    )


@dataclass(frozen=True, eq=False)
class _Grid:
    """The lattice of r that a pass is computed on: its points, how many releases are summed, and what may be lost."""

    edges: Array
    step: float
    bins: int
    cut: float
    add: bool

    @staticmethod
    def between(low: float, high: float, step: float, bins: int, cut: float, *, add: bool) -> _Grid:
        """Returns the lattice from `low` to `high` or just beyond."""
        edges = low + np.arange(max(1, math.ceil((high - low) / step)) + 1) * step
        return _Grid(edges, step, bins, cut, add)


@dataclass(frozen=True, eq=False)
class _Sum:
    """Masses of a sum of ratios at equally spaced values, each known up to an error, and a bound on what lies beyond."""

    values: Array
    mass: Array
    error: Array
    beyond: float

    @property
    def above(self) -> Array:
        """Returns the masses from above."""
        return self.mass + self.error

    @property
    def below(self) -> Array:
        """Returns the masses from below."""
        return np.maximum(self.mass - self.error, 0.0)

    def places_known_well(self) -> NDArray[np.int64]:
        """Returns the places of the masses that are known well; the others are counted as a neighbour of theirs."""
        return np.flatnonzero((self.mass > 0) & (self.error <= _SOLID * self.mass))


def _cell_masses(pair: Pair, edges: Array) -> tuple[Array, Array]:
    """Returns Q- and P-masses of cells of r: below the first edge, between edges, above the last."""
    with np.errstate(divide="ignore"):
        return pair.masses(np.log(edges))


def _find_limits(pair: Pair, bins: int, cut: float) -> tuple[float, float]:
    """Returns the two largest ratios that an allocation pass needs: R, beyond which two releases of the pass together
    have P-mass at most cut, and r, beyond which one has.
    """
    ratio = pair.native_edges()
    q, p = pair.masses(ratio)
    above_q, above_p = np.cumsum(q[::-1])[::-1][1:], np.cumsum(p[::-1])[::-1][1:]
    both = bins * above_q * above_p + (bins * above_q) ** 2 / 2
    first = float(ratio[min(int(np.argmax(both <= cut)) if (both <= cut).any() else len(ratio) - 1, len(ratio) - 1)])
    last = float(ratio[int(np.argmax(above_p <= cut / 100)) if (above_p <= cut / 100).any() else len(ratio) - 1])
    return math.exp(min(first, 60.0)), math.exp(min(max(last, first), 600.0))


def _find_lowest_ratio(pair: Pair, bins: int, cut: float) -> float:
    """Returns a ratio below which one release of an allocation pass falls with Q-mass at most cut/100."""
    ratio = pair.native_edges()
    q, _ = pair.masses(ratio)
    below = np.flatnonzero(bins * np.cumsum(q)[:-1] <= cut / 100)
    return math.exp(max(float(ratio[below[-1]]), -600.0)) if len(below) else math.exp(max(float(ratio[0]) - 1, -600.0))


def _find_near_limit(pair: Pair, bins: int) -> float:
    """Returns a ratio beyond which two releases of an allocation pass seldom are, which is all that adding a record
    needs.
    """
    ratio = pair.native_edges()
    q, _ = pair.masses(ratio)
    above = np.cumsum(q[::-1])[::-1][1:]
    rare = np.flatnonzero((bins * above) ** 2 / 2 <= _SELDOM)
    return math.exp(min(float(ratio[rare[0] if len(rare) else -1]), 60.0))


def _find_small_spacing(pair: Pair, bins: int, cut: float) -> float:
    """Returns the lattice spacing of the ratios at which all releases of an allocation pass are in the lowest cells
    with less than what may be lost.
    """
    ratio = pair.native_edges()
    q, _ = pair.masses(ratio)
    seldom = np.flatnonzero(bins * np.log(np.maximum(np.cumsum(q)[:-1], 1e-300)) <= math.log(cut))
    return math.exp(max(float(ratio[seldom[-1] if len(seldom) else 0]), -600.0)) / 4


def _choose_step(pair: Pair, limit: float, bins: int) -> float:
    """Returns the spacing of the lattice of ratios r for an allocation pass: a part of the standard deviation of r, as
    far as memory allows.
    """
    ratio = pair.native_edges()
    q, p = pair.masses(ratio)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        r = np.where(q > 1e-280, p / np.maximum(q, 1e-290), 0.0)[1:-1]
    bulk = r <= limit
    mean = float(q[1:-1][bulk] @ r[bulk])
    std = math.sqrt(max(float(q[1:-1][bulk] @ (r[bulk] - mean) ** 2), 1e-12))
    cells = _CELLS * min(max(math.sqrt(_FEW / bins), 1.0), 12.0)
    return max(std / cells, (bins + 12 * std * math.sqrt(bins) + 4 * limit) / _LONGEST)


class _Summands:
    """Masses on the lattice of r, to be summed: tilts that serve both tails, and the length that holds the sum."""

    def __init__(self, grid: _Grid, q: Array, p: Array) -> None:
        self.grid, self.q, self.p = grid, q, p
        self.r = np.arange(len(q)) * grid.step  # relative to the lowest point of the lattice
        # The tilts are chosen on a coarser law of r: they decide precision, not validity.
        coarse = max(1, len(q) // 2000)
        usable = len(q) // coarse * coarse
        self._coarse_q = np.append(q[:usable].reshape(-1, coarse).sum(axis=1), q[usable:])
        self._coarse_r = np.append(self.r[:usable].reshape(-1, coarse).mean(axis=1), self.r[usable:])
        mean, std = self._tilted_moments(0.0)
        self.scale = max(std, grid.step)
        need = -math.log(grid.cut) + 8.0
        depths = [depth for depth in _DEPTHS if depth < need]
        if grid.add:
            positive = [_PARTS[0] * self._find_tilt(_DEPTHS[0], 1.0)]
            self.tilts = [0.0, *(-self._find_tilt(depth, -1.0) for depth in depths)]
            need = -math.log(_SELDOM)
        else:
            up = [self._find_tilt(depth, 1.0) for depth in depths]
            # A rare large ratio takes over suddenly as the tilt grows, so weaker tilts serve what lies between.
            positive = sorted({part * up[0] for part in _PARTS} | set(up))
            self.tilts = [0.0, *positive]
        # The sum is held up to where its P-mass is far below what may be lost; the bound on the rest is exact.
        candidates = sorted({factor * tilt for tilt in positive for factor in _CHERNOFF})
        self._log_q = {s: _log_moment(self.q, self.r, s) for s in candidates}
        self._log_p = {s: _log_moment(self.p, self.r, s) for s in candidates}
        reach = min(((grid.bins - 1) * self._log_q[s] + self._log_p[s] + need + 12.0) / s for s in candidates)
        # Nor may the tilted sums reach round the end to where they are read.
        for tilt in () if grid.add else positive:
            steeper = [s for s in candidates if s > 1.05 * tilt]
            reach = max(
                reach, min((grid.bins * (self._log_q[s] - self._log_q[tilt]) + _ALIASED) / (s - tilt) for s in steeper)
            )
        length = math.ceil(max(reach, mean + 8 * std) / grid.step) + 2
        self.length = int(next_fast_len(min(max(length, len(q)), _LONGEST), real=True))
        self._candidates = candidates

    def _tilted_moments(self, tilt: float) -> tuple[float, float]:
        """Returns the tilted mean and standard deviation of the sum S of an allocation pass's ratios, from the coarser
        law of r.
        """
        exponent = tilt * self._coarse_r
        weight = self._coarse_q * np.exp(exponent - exponent.max())
        total = float(weight.sum())
        mean = float(weight @ self._coarse_r) / total
        variance = float(weight @ (self._coarse_r - mean) ** 2) / total
        return self.grid.bins * mean, math.sqrt(self.grid.bins * variance)

    def _find_tilt(self, depth: float, sign: float) -> float:
        """Returns the size of the tilt that centres the sum of an allocation pass's ratios where its tail has
        e^{−depth} of the mass.
        """
        # Bisect over the logarithm of the tilt, because its size is known within a few powers of ten only.
        low, high = math.log(1e-3 / self.scale), math.log(1e3 / self.scale)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            tilt = sign * math.exp(middle)
            # The exponent's maximum is taken out before exp, so that no moment overflows.
            exponent = tilt * self._coarse_r
            top = float(exponent.max())
            log_moment = top + math.log(float(self._coarse_q @ np.exp(exponent - top)))
            mean, _ = self._tilted_moments(tilt)
            # Cramér: tilt·mean − log moment is −log of the tail's mass at the tilted mean. It grows with the tilt.
            low, high = (middle, high) if tilt * mean - self.grid.bins * log_moment < depth else (low, middle)
            if high - low < 1e-2:
                break
        return math.exp(low)

    def law_of_sum(self, count: int, extra: Array | None = None) -> _Sum:
        """Returns the law of a sum of `count` ratios r of an allocation pass under Q, and of one more with the masses
        `extra`.
        """
        grid, number = self.grid, count + (extra is not None)
        # Every tilt makes some stretch of the law precise. At each place the value with the smallest certified error is
        # kept.
        best = np.full(self.length, math.inf)
        mass = np.zeros(self.length)
        index = np.arange(self.length)
        for tilt in self.tilts:
            found, error, log_scale = self._transform_tilted(tilt, count, extra)
            # Undo the tilt in logarithms. Where the factor would overflow, the error counts as infinite and another
            # tilt is used.
            exponent = log_scale - tilt * grid.step * index
            factor = np.exp(np.minimum(exponent, _LARGEST_EXPONENT))
            off = np.where(exponent < _LARGEST_EXPONENT, error * factor, math.inf)
            better = off < best
            mass[better], best[better] = (found * factor)[better], off[better]
        # Chernoff's bound on the P-mass beyond the end; with S above its mean that is more than the Q-mass.
        end = self.length * grid.step
        beyond = min(
            (number - 1) * self._log_q[s] + max(self._log_p[s], self._log_q[s]) - s * end for s in self._candidates
        )
        values = number * float(grid.edges[0]) + index * grid.step
        return _Sum(values, mass, np.minimum(best, 1.0), math.exp(min(beyond, 0.0)))

    def _transform_tilted(self, tilt: float, count: int, extra: Array | None) -> tuple[Array, float, float]:
        """Returns the tilted masses of a sum of an allocation pass's ratios, the error of each mass, and the logarithm
        of the masses' scale.
        """
        lift = tilt * self.r
        top = float(lift.max())
        weight = np.exp(lift - top)
        base = self.q * weight
        total = float(base.sum())
        rounding = _EPS * (math.log2(self.length) + _ARITHMETIC + 0.5 * float(base @ np.abs(lift - top)) / total)
        spectrum = rfft(base / total, self.length)
        size = np.abs(spectrum) + rounding
        # Most frequencies of many releases are silent; what they add to any point is charged.
        loud = size > math.exp(math.log(SILENT) / max(count, 1))
        product, size = np.zeros_like(spectrum), size[loud]
        product[loud] = power(spectrum[loud], count) if count else 1.0
        log_scale = count * (top + math.log(total))
        each = count * size ** max(count - 1, 0) + size**count
        if extra is not None:
            other = extra * weight
            other_total = max(float(other.sum()), 1e-300)
            product = product * rfft(other / other_total, self.length)
            log_scale += top + math.log(other_total)
            each = each + size**count
        # A mass is a mean over frequencies, and so is its error; each frequency of a real transform stands for two.
        error = 2 * rounding * float(each.sum()) / self.length + 2 * SILENT
        # What lies beyond the end appears at the beginning: Chernoff's bound on the tilted masses.
        end = self.length * self.grid.step
        beyond = [
            count * self._log_q[s] + (self._log_p[s] if extra is not None else 0.0) - log_scale - (s - tilt) * end
            for s in self._candidates
            if s > tilt
        ]
        error += math.exp(min(min(beyond, default=0.0), 0.0))
        return np.maximum(irfft(product, self.length), 0.0), error, log_scale


def _log_moment(mass: Array, values: Array, tilt: float) -> float:
    """Returns log Σ mass·e^{θ·value} of the ratios that an allocation pass sums, rounded up."""
    exponent = tilt * values
    top = float(exponent.max())
    return top + math.log(max(float(mass @ np.exp(exponent - top)), 1e-300)) + 1e-9


def _spread_over_lattice(pair: Pair, grid: _Grid) -> tuple[Array, float, float]:
    """Returns the Q-masses of one release of an allocation pass on the lattice of ratios r (P-masses are r times as
    large), and the Q-mass left out below and above the lattice.
    """
    edges, step = grid.edges, grid.step
    a, b = _cell_masses(pair, edges)
    up = np.clip((b[1:-1] - a[1:-1] * edges[:-1]) / step, 0.0, a[1:-1])
    small = np.zeros(len(edges))
    small[1:] += up
    small[:-1] += a[1:-1] - up
    # Below the lattice the P-mass is kept, at the lowest point; the Q-mass that is too much for it is left out.
    lowest = min(float(b[0]) / float(edges[0]), float(a[0]))
    small[0] += lowest
    return small, max(0.0, float(a[0]) - lowest), float(a[-1])


def _spread_beyond_lattice(pair: Pair, limit: float, last: float) -> tuple[Array, Array, float]:
    """Returns the ratios r of an allocation pass beyond its lattice, on a geometric grid from limit to last, with
    Q-masses, and the P-mass left for r = ∞.
    """
    log_edges = _far_edges(limit, last)
    a, b = pair.masses(log_edges)
    r = np.exp(log_edges)
    up = np.clip((b[1:-1] - a[1:-1] * r[:-1]) / np.diff(r), 0.0, a[1:-1])
    q = np.zeros(len(r))
    q[1:] += up
    q[:-1] += a[1:-1] - up
    q[-1] += a[-1]
    return r, q, max(0.0, float(b[-1] - a[-1] * r[-1]))


def _far_edges(limit: float, last: float) -> Array:
    """Returns edges of the geometric grid of ratios beyond the lattice."""
    count = max(2, math.ceil(math.log(max(last / limit, 1.0)) / math.log(_GROWTH)) + 1)
    return np.linspace(math.log(limit), math.log(max(last, limit * _GROWTH)), count)


def _sum_by_place(place: NDArray[np.int64], masses: Array, size: int) -> Array:
    """Returns the sum of the masses that go to each place."""
    return np.asarray(np.bincount(place, masses, size), dtype=np.float64)


def _coarse_points(law: _Sum) -> NDArray[np.int64]:
    """Returns ascending indices that are dense around the middle of the law of an allocation pass's sum and sparser in
    its tails.
    """
    used = np.flatnonzero(law.mass > 1e-300)
    total = float(law.mass.sum())
    index = np.arange(len(law.mass))
    mean = float(law.mass @ index) / total
    std = math.sqrt(max(float(law.mass @ (index - mean) ** 2) / total, 1.0))
    points = graded_indices(int(used[0]), int(used[-1]) + 1, mean, std, max(1, int(std / _COARSE)), _COARSE)
    return np.unique(np.clip(points, 0, len(law.mass) - 1))


def _coarsen(law: _Sum) -> _Sum:
    """Returns the law of an allocation pass's sum spread over fewer points without changing the mean in any cell;
    errors are spread alike.
    """
    points = _coarse_points(law)
    if len(points) < 2:
        return law
    # Only the stretch between the first and the last point is spread; what lies outside is counted as beyond.
    low, high = int(points[0]), int(points[-1])
    grid, inside = law.values[points], slice(low, high + 1)
    # A mass between two points is divided so that its mean stays, which makes the law a mean-preserving spread of the
    # true one.
    cell = np.clip(np.searchsorted(points, np.arange(low, high + 1), side="right") - 1, 0, len(points) - 2)
    share = (law.values[inside] - grid[cell]) / (grid[cell + 1] - grid[cell])
    mass, error = (
        _sum_by_place(cell, part * (1 - share), len(points)) + _sum_by_place(cell + 1, part * share, len(points))
        for part in (law.mass[inside], law.error[inside])
    )
    outside = float(law.above[:low].sum() + law.above[high + 1 :].sum())
    return _Sum(grid, mass, error, law.beyond + outside)


def _make_dominating_pair(pair: Pair, grid: _Grid, last: float) -> DiscretePair:
    """Returns a pair that dominates an allocation pass, when its record is removed or when it is added as the grid
    says.
    """
    bins, limit = grid.bins, float(grid.edges[-1])
    small, left_out, far_q = _spread_over_lattice(pair, grid)
    far_p = float(pair.masses(np.array([math.log(limit)]))[1][-1])
    summands = _Summands(grid, small, small * grid.edges)
    whole = summands.law_of_sum(bins)
    far_r, far_masses, infinite = _spread_beyond_lattice(pair, limit, last)
    others = _coarsen(summands.law_of_sum(bins - 1))
    # Two releases beyond the lattice, and one below it that was left out. Sums of more than one such are far smaller.
    two = bins * far_q * far_p + (bins * far_q) ** 2 / 2
    lost_p = infinite + two + bins * left_out + whole.beyond + far_p * others.beyond + bins * far_q * others.beyond
    # Exactly one release beyond the lattice: S = r + the sum of the others, and t batches that it may be.
    one_s = np.add.outer(far_r, others.values)
    one_above = bins * np.multiply.outer(far_masses, others.above)
    one_below = bins * np.multiply.outer(far_masses, others.below)
    if not grid.add:
        return _make_removing_pair(whole, one_s, one_above, one_below, bins, lost_p)
    return _make_adding_pair(
        whole, one_s, one_above, one_below, bins, bins * left_out, two + bins * far_q * others.beyond
    )


def _make_removing_pair(
    whole: _Sum, one_s: Array, one_above: Array, one_below: Array, bins: int, infinite: float
) -> DiscretePair:
    """Returns the pair of an allocation pass for removing a record, P from above against Q from below; a mass of the
    sum that is not known well counts as the next known one above.
    """
    # P/Q = S/t for the sum S of all ratios, where t is the number of bins.
    keep = whole.places_known_well()
    p = whole.above * whole.values / bins
    # A mass that is not known well moves to a larger loss, which makes δ larger and the bound safe; beyond the last
    # known place the loss counts as infinite.
    place = np.searchsorted(keep, np.arange(len(p)))
    masses = _sum_by_place(place, p, len(keep) + 1)
    infinite += float(masses[-1])
    masses = masses[:-1]
    values = np.log(whole.values[keep] / bins) + np.log(whole.above[keep] / whole.below[keep])
    # One release beyond the lattice is handled separately, and only where its mass is known to a factor of two.
    known = one_below > 0.5 * one_above
    one_p = one_above * one_s / bins
    infinite += float(one_p[~known].sum())
    values = np.append(values, np.log(one_s[known] / bins) + np.log(one_above[known] / one_below[known]))
    masses = np.append(masses, one_p[known])
    return _make_sorted_pair(values, masses, masses * np.exp(-np.minimum(values, _LARGEST_EXPONENT)), infinite, 0.0)


def _make_adding_pair(
    whole: _Sum, one_s: Array, one_above: Array, one_below: Array, bins: int, lost: float, far: float
) -> DiscretePair:
    """Returns the pair of an allocation pass for adding a record, Q from above against P from below; a mass of the sum
    that is not known well counts as the next known one below.
    """
    # For adding a record the loss is −log(S/t), so the safe side is the other one: unknown masses move down.
    keep = whole.places_known_well()
    if not len(keep):
        return _make_sorted_pair(np.zeros(1), np.zeros(1), np.zeros(1), 0.0, 1.0)
    place = np.searchsorted(keep, np.arange(len(whole.mass)), side="right")
    masses = _sum_by_place(place, whole.above, len(keep) + 1)
    # What lies below all known places is counted as lost altogether.
    lost += float(masses[0])
    masses = masses[1:]
    masses[-1] += whole.beyond + far
    values = np.log(whole.values[keep] / bins) - np.log(whole.above[keep] / whole.below[keep])
    known = one_below > 0.5 * one_above
    end = float(whole.values[keep[-1]])
    # A release beyond the lattice makes S large, which is a small loss when the record is added.
    lost += float(one_above[~known & (one_s < end)].sum())
    masses[-1] += float(one_above[~known & (one_s >= end)].sum())
    values = np.append(values, np.log(one_s[known] / bins) - np.log(one_above[known] / one_below[known]))
    masses = np.append(masses, one_above[known])
    return _make_sorted_pair(values, masses * np.exp(np.minimum(values, _LARGEST_EXPONENT)), masses, 0.0, lost)


def _make_sorted_pair(values: Array, p: Array, q: Array, infinite: float, lost: float) -> DiscretePair:
    """Returns the discrete pair of an allocation pass with its values ascending; masses of zero are left out."""
    use = np.flatnonzero((p > 0) | (q > 0))
    if not len(use):
        use = np.zeros(min(1, len(values)), dtype=np.int64)
    order = use[np.argsort(values[use], kind="stable")]
    return DiscretePair(values[order], p[order], q[order], min(infinite, 1.0), min(lost, 1.0))


def _make_dominated_pair(pair: Pair, grid: _Grid, last: float) -> DiscretePair:
    """Returns a pair that an allocation pass dominates, for lower bounds: its releases binned, the bins summed, errors
    against us.
    """
    bins = grid.bins
    # The first cell takes up what lies below the lattice: binning loses information, so a binned pair is dominated.
    a, b = _cell_masses(pair, grid.edges)
    q, p = a[1:-1].copy(), b[1:-1].copy()
    q[0] += a[0]
    p[0] += b[0]
    summands = _Summands(grid, q, p)
    # Under Q all bins are without the record; under P one of them has it.
    q_laws = [summands.law_of_sum(bins)]
    p_laws = [summands.law_of_sum(bins - 1, p)]
    far_q, far_p = pair.masses(_far_edges(float(grid.edges[-1]), last))
    far_q, far_p = far_q[1:], far_p[1:]
    others_q = summands.law_of_sum(bins - 1)
    others_p = summands.law_of_sum(bins - 2, p) if bins > 1 else None
    points = _coarse_points(others_q)
    if float(far_p.sum()) > 0 and len(points) > 1:
        # Exactly one release beyond the lattice: it is the record's own (p · Q) or another's ((t − 1) · q · P).
        q_laws.append(_combine_bins(bins * far_q, others_q, points))
        own, another = _combine_bins(far_p, others_q, points), None
        if others_p is not None:
            another = _combine_bins((bins - 1) * far_q, others_p, points)
            own = _Sum(own.values, own.mass + another.mass, own.error + another.error, 0.0)
        p_laws.append(own)
    # The errors hold what was moved round the ends of a transform, so each bin is bounded by itself.
    top, bottom = (q_laws, p_laws) if grid.add else (p_laws, q_laws)
    return _keep_certain_bins(
        np.concatenate([law.below for law in top]), np.concatenate([law.above for law in bottom]), adding=grid.add
    )


def _combine_bins(weights: Array, law: _Sum, points: NDArray[np.int64]) -> _Sum:
    """Returns the binned law of an allocation pass with one release beyond the lattice: each bin pairs one for that
    release with a coarse bin of the others' sum.
    """
    mass, error = (np.add.reduceat(part[: points[-1] + 1], points[:-1]) for part in (law.mass, law.error))
    shape = np.multiply.outer(weights, mass).ravel()
    return _Sum(shape, shape, np.multiply.outer(weights, error).ravel(), float(weights.sum()) * law.beyond)


def _keep_certain_bins(numerator: Array, denominator: Array, *, adding: bool = False) -> DiscretePair:
    """Returns the pair that an allocation pass dominates, of the bins whose numerator is known to be there, ordered by
    ratio; other bins are left out.
    """
    use = (numerator > 1e-290) & (denominator > 1e-290)
    if not use.any():
        return DiscretePair(np.zeros(1), np.ones(1), np.ones(1))
    top, bottom = numerator[use], denominator[use]
    p, q = (bottom, top) if adding else (top, bottom)
    values = np.log(p) - np.log(q)
    order = np.argsort(values, kind="stable")
    return DiscretePair(values[order], p[order], q[order])
