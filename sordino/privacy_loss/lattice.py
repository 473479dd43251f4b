"""One sampled release on a lattice of privacy losses: rounded up (connect-the-dots) and binned (a lower bound).

Doroshenko, Ghazi, Kamath, Kumar & Manurangsi 2022. Sampling each record with probability q turns the pair (P, Q) into
((1−q)Q + qP, Q) when the record is removed and (Q, (1−q)Q + qP) when it is added (Zhu, Dong & Wang 2022, theorem 11).

**Privacy:** the mass of a cell [l₀, l₁] of losses is split between its ends so that both the P-mass and the Q-mass are
kept: the new pair can be processed into the old one, so its δ is at least as large for every ε, also after
composition. Bins bound δ from the other side: a bin is a function of the output, so the δ of the bins is at most the true
one. Splits use r = dP/dQ, of which the sampled loss is log(1 + q(r−1)), so nothing cancels at any q. The argument holds for
cells of any width, so cells are wider where there is little mass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from sordino.privacy_loss.pairs import Array, Pair
from sordino.privacy_loss.soundness import require_at_most

Indices = NDArray[np.int64]

_CORE = 6.0  # standard deviations of unit spacing on each side
_FINEST = 1e-12
"""The smallest spread a lattice is made for, relative to the largest loss: its indices stay whole numbers of 64 bits."""
LEAST_SPREAD = 1e-7  # standard deviation of a loss, relative to its mean
_TINY = 1e-290  # masses below are rounded, or lost
_LARGE = 700.0  # exp of more overflows


@dataclass(frozen=True, eq=False)
class Atoms:
    """P-masses at losses h·index, and the P-mass at infinite loss."""

    index: Indices
    mass: Array
    infinite: float


@dataclass(frozen=True, eq=False)
class Bins:
    """P-masses of cells, each named by an integer, and logarithms of their Q-masses."""

    index: Indices
    p: Array
    log_q: Array


@dataclass(frozen=True)
class Mesh:
    """A lattice: its step, cells per standard deviation where that is coarser, the tail mass to be cut off."""

    step: float
    fine: float
    cut: float


@dataclass(frozen=True, eq=False)
class NativeLosses:
    """A release on its pair's own grid: privacy losses with the logarithms of their P-masses, mean and standard deviation.

    `low` and `high` are the ends of the losses, as losses of removing a record.
    """

    loss: Array
    log_mass: Array
    low: float
    high: float
    mean: float
    std: float

    def quantile(self, above: float) -> float:
        """Returns the privacy loss beyond which P-mass of about `above` lies, from which a lattice is chosen."""
        order = np.argsort(self.loss)
        tail = np.cumsum(np.exp(self.log_mass[order])[::-1])[::-1]
        over = np.flatnonzero(tail > above)
        return float(self.loss[order][over[-1]]) if len(over) else float(self.loss[order][0])


def sampled_loss(rate: float, ratio: Array) -> Array:
    """Returns the privacy loss of a Poisson-sampled release, log(1 + q(e^λ − 1)), which is what a lattice holds."""
    if rate == 1.0:
        return ratio
    small = np.minimum(ratio, _LARGE)
    near = np.log1p(rate * np.expm1(np.minimum(small, 1.0)))
    far = small + math.log(rate) + np.log1p((1 - rate) / rate * np.exp(-np.maximum(small, 1.0)))
    return np.where(ratio <= 1.0, near, far + (ratio - small))


def base_ratio(rate: float, loss: Array) -> Array:
    """Returns the λ at which a sampled release has a privacy loss on the lattice, the inverse of `sampled_loss`; −∞
    where none has.
    """
    if rate == 1.0:
        return loss
    bottom = math.log1p(-rate)
    with np.errstate(invalid="ignore", divide="ignore"):
        near = np.log1p(np.maximum(np.expm1(np.minimum(loss, 1.0)) / rate, -0.5))
        # close to the smallest loss, log(1 − q), the ratio is a small difference: e^loss − (1 − q), without cancellation
        small = bottom - math.log(rate) + np.log(np.maximum(np.expm1(np.minimum(loss, 1.0) - bottom), 0.0))
        far = loss - math.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(loss, 1.0)))
    return np.where(loss > 1.0, far, np.where(np.expm1(np.minimum(loss, 1.0)) / rate > -0.5, near, small))


@dataclass(frozen=True)
class Sampled:
    """A pair after Poisson sampling at `rate`; `subset` when it is a fixed-size subset under replace-one instead."""

    pair: Pair
    rate: float = 1.0
    subset: bool = False

    @property
    def symmetric(self) -> bool:
        """Whether one direction stands for both."""
        return self.subset or (self.rate == 1.0 and self.pair.symmetric)

    def native_losses(self, add: bool, cut: float) -> NativeLosses:
        """Returns losses and P-masses on the pair's own grid, without tails of mass `cut`, to choose a lattice."""
        return _compute_native_losses(self, add, cut)

    def _graded_cells(self, mesh: Mesh, add: bool) -> tuple[Indices, Array, Array]:
        """Returns graded edges of lattice cells, in units of the step on the loss axis of removing, and the base masses
        of the cells.
        """
        # The cells cover all losses that have mass above the cut, and one step more on each side.
        native = self.native_losses(add, mesh.cut)
        step, std = mesh.step, native.std
        low, high = math.floor(native.low / step) - 1, math.ceil(native.high / step) + 1
        mean = -native.mean if add else native.mean
        if self.subset:
            low, mean = 0, 0.0
        # Cells are fine around the mean of the losses and wider in the tails, where little mass lies.
        unit = max(1, int(std / (mesh.fine * step)))
        edges = graded_indices(low, high, mean / step, std / step, unit, mesh.fine)
        # The edges are mapped back to λ of the unsampled pair, whose masses are known in closed form.
        base_q, base_p = self.pair.for_direction(add).masses(base_ratio(self.rate, edges * step))
        bottom = math.log1p(-self.rate) if self.rate < 1 else -math.inf
        if edges[0] * step < bottom <= edges[-1] * step:
            # no sampled loss is below log(1 − q): what P lacks altogether (λ = −∞) is there, not below the first edge
            cell = max(1, int(np.searchsorted(edges * step, bottom)))
            for masses in (base_q, base_p):
                masses[cell], masses[0] = masses[cell] + masses[0], 0.0
        return edges, base_q, base_p

    def round_up(self, mesh: Mesh, add: bool) -> Atoms:
        """Returns the sampled release rounded up on the lattice of a mesh, so that it dominates the true one
        (connect-the-dots).
        """
        edges, base_q, base_p = self._graded_cells(mesh, add)
        step = mesh.step
        if self.subset:
            atoms = self._round_up_subset(edges, base_q, base_p, step)
        elif add:
            atoms = self._round_up_adding(edges, base_q, base_p, step)
        else:
            atoms = self._round_up_removing(edges, base_q, base_p, step)
        # a mass that has gone astray would be a loss that nobody counts
        require_at_most(1.0, float(atoms.mass.sum()) + atoms.infinite, "the masses of a release add up to one")
        return atoms

    def _round_up_removing(self, edges: Indices, a: Array, b: Array, step: float) -> Atoms:
        """Rounds a sampled release up on the lattice for removing a record: splits the P-mass of each cell between its
        ends, so that its Q-mass is kept as well.
        """
        p = (1 - self.rate) * a + self.rate * b
        inner_a, inner_b, inner_p = a[1:-1], b[1:-1], p[1:-1]
        loss = edges * step
        low_ratio = self._signed_ratio(loss[:-1])
        width = -np.expm1(-np.diff(edges) * step)
        # mass at the upper end: q(B − A·r₀)/(1 − e^{−w})
        up = np.clip(self.rate * (inner_b - inner_a * low_ratio) / width, 0.0, inner_p)
        mass = np.zeros(len(edges))
        mass[1:] += up
        mass[:-1] += inner_p - up
        mass[0] += p[0]
        return Atoms(edges, mass, float(p[-1]))

    def _round_up_adding(self, edges: Indices, a: Array, b: Array, step: float) -> Atoms:
        """Rounds a sampled release up on the lattice for adding a record, where the loss is −log(dP/dQ): splits the
        mass of each cell between its ends.
        """
        inner_a, inner_b = a[1:-1], b[1:-1]
        loss = edges * step
        high_ratio = self._signed_ratio(loss[1:])
        width = -np.expm1(-np.diff(edges) * step)
        # the loss is −m: the upper end is the lower edge m₀; mass there: q(A·r₁ − B)e^{−m₁}/(1 − e^{−w})
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            near = self.rate * (inner_a * high_ratio - inner_b) * np.exp(-loss[1:])
            far = inner_a * (1 - (1 - self.rate) * np.exp(-loss[1:])) - self.rate * inner_b * np.exp(-loss[1:])
        share = np.where(loss[1:] < _LARGE / 2, near, far) / width
        # where floats end, all of it goes to the upper end
        up = np.where(np.isfinite(share), np.clip(share, 0.0, inner_a), inner_a)
        mass = np.zeros(len(edges))
        mass[:-1] += up
        mass[1:] += inner_a - up
        mass[-1] += a[-1]
        return Atoms(-edges[::-1], mass[::-1].copy(), float(a[0]))

    def _round_up_subset(self, edges: Indices, a: Array, b: Array, step: float) -> Atoms:
        """Rounds a release on a fixed-size subset up on the lattice: losses above 0 as when removing a record, below 0
        as when adding one (Zhu, Dong & Wang 2022, prop. 30).
        """
        plus = self._round_up_removing(edges, np.concatenate(([0.0], a[1:])), np.concatenate(([0.0], b[1:])), step)
        minus = self._round_up_adding(edges, np.concatenate(([0.0], a[1:])), np.concatenate(([0.0], b[1:])), step)
        rest = max(0.0, 1.0 - float(plus.mass.sum()) - plus.infinite - float(minus.mass.sum()))
        index = np.concatenate((minus.index[:-1], plus.index))
        mass = np.concatenate((minus.mass[:-1], plus.mass))
        mass[len(minus.index) - 1] += rest + minus.mass[-1]
        return Atoms(index, mass, plus.infinite)

    def bin_outputs(self, mesh: Mesh, add: bool) -> Bins:
        """Returns the sampled release binned on the lattice's cells, for a lower bound; for a subset, of the pair that
        a real dataset attains in one direction.
        """
        whole = Sampled(self.pair.lower_pair(), self.rate)
        edges, a, b = whole._graded_cells(mesh, add)
        middle = np.concatenate((edges[:1] - 1, (edges[1:] + edges[:-1]) // 2, edges[-1:]))
        mixed = (1 - self.rate) * a + self.rate * b
        ends = edges * mesh.step
        # the least loss of each cell
        if add:
            return Bins(-middle[::-1], a[::-1], _log_masses_from_above(mixed, a, np.append(-ends, -math.inf))[::-1])
        return Bins(middle, mixed, _log_masses_from_above(a, mixed, np.insert(ends, 0, -math.inf)))

    def _signed_ratio(self, loss: Array) -> Array:
        """Returns dP/dQ = (e^loss − (1 − q))/q at each privacy loss of the lattice, negative where a sampled release
        never reaches the loss.

        The difference is written as (1 − q)(e^{loss − log(1−q)} − 1), because 1 + (e^loss − 1)/q loses every digit once
        e^loss is below 2⁻⁵³ (at q = 1, below a loss of −37): a ratio of zero puts the mass of a cell at the wrong end.
        Ratios are capped where no mass is left.
        """
        capped = np.minimum(loss, _LARGE)
        if self.rate == 1.0:
            return np.exp(capped)
        bottom = math.log1p(-self.rate)
        with np.errstate(over="ignore"):
            return np.minimum(math.exp(bottom) * np.expm1(capped - bottom) / self.rate, 1e300)


def _log_masses_from_above(q: Array, p: Array, least: Array) -> Array:
    """Returns upper bounds on the logarithms of the Q-masses of lattice bins.

    Where a Q-mass is too small for a float, it follows from the P-mass, which is at least e^least times as large.
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        end = np.where(p > 0, np.minimum(np.log(p) - least, math.log(_TINY)), -math.inf)
        return np.where(q > _TINY, np.log(q), end)


@lru_cache(maxsize=4096)
def _compute_native_losses(sampled: Sampled, add: bool, cut: float) -> NativeLosses:
    """Returns the privacy losses of a sampled release on its pair's own grid, from which a lattice is chosen; kept,
    because every search asks for them several times.
    """
    pair = sampled.pair.for_direction(add)
    edges = pair.native_edges()
    # Masses of the cells between edges; what little lies outside joins the outermost cells.
    a, b = (np.append(masses[0] + masses[1], masses[2:-1]) for masses in pair.masses(edges))
    mixed = (1 - sampled.rate) * a + sampled.rate * b
    middle = (edges[1:] + edges[:-1]) / 2
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where((a > 1e-290) & (b > 1e-290), np.log(b) - np.log(a), middle)
    ends = sampled_loss(sampled.rate, edges)
    loss = np.clip(sampled_loss(sampled.rate, np.clip(ratio, edges[:-1], edges[1:])), ends[:-1], ends[1:])
    p = a if add else mixed
    # Leave out the tails that hold less than `cut`.
    keep = (np.cumsum(p) > cut) & (np.cumsum(p[::-1])[::-1] > cut)
    if not keep.any():
        keep[int(np.argmax(p))] = True
    first, last = int(np.argmax(keep)), len(keep) - int(np.argmax(keep[::-1]))
    loss, p = loss[first:last], p[first:last]
    if add:
        loss = -loss
    # Mean and spread; both only serve to choose a lattice.
    mean = float(p @ loss) / float(p.sum())
    # a loss that hardly varies (little noise, record added) is resolved relative to its size
    reach = max(abs(float(ends[first])), abs(float(ends[last])))  # and no finer than indices can tell apart
    std = max(math.sqrt(max(float(p @ (loss - mean) ** 2), 1e-290)), LEAST_SPREAD * abs(mean), _FINEST * reach)
    positive = p > 0
    return NativeLosses(loss[positive], np.log(p[positive]), float(ends[first]), float(ends[last]), mean, std)


def graded_indices(low: int, high: int, centre: float, std: float, unit: int, fine: float) -> Indices:
    """Returns indices of a graded lattice from low to high, `unit` apart within six std of the centre, then further and
    further apart.
    """
    reach = max(_CORE * std, 2.0 * unit)
    left, right = max(low, math.floor(centre - reach)), min(high, math.ceil(centre + reach))
    if left > right:
        left = right = min(max(round(centre), low), high)
    core = np.arange(left, right + unit, unit, dtype=np.int64)
    growth = math.log1p(1 / max(_CORE * fine, 2.0))
    below = _distances(int(core[0]) - low, reach, growth)
    above = _distances(high - int(core[-1]), reach, growth)
    return np.concatenate(((core[0] - below)[::-1], core, core[-1] + above))


def _distances(room: int, reach: float, growth: float) -> Indices:
    """Returns the growing distances of a graded lattice's outer points: reach·(e^{growth·k} − 1) for k = 1, 2, …, up to
    room, as ascending integers without repetition.
    """
    if room <= 0:
        return np.empty(0, dtype=np.int64)
    count = math.ceil(math.log1p(room / reach) / growth) + 1
    distance = np.minimum(np.rint(reach * np.expm1(np.arange(count + 1) * growth)), room).astype(np.int64)
    distance[-1] = room
    return np.asarray(distance[1:][np.diff(distance) > 0])
