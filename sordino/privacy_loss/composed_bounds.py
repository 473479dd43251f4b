"""Certified ε(δ) and δ(ε) of a composition of sampled releases, one direction at a time.

The lattice step follows from the accuracy asked for: connect-the-dots raises K(θ) by about T·h²θ(θ+1)/12, hence ε by
ΔK/θ; the step is chosen so that this is `tolerance`·ε at the saddle point, measured once and corrected (masses that
sit on a lattice point cost nothing). When rare large losses would dominate the tilted masses (tiny rates, little
noise), the outcomes with at least one such jump are composed apart, at a tilt of their own: Σ of both is the whole.

**Privacy:** see `lattice` and `tilted_windows`. Step, tilt, window and split are found from approximations, but they change
only how tight the two bounds are, never whether they hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from sordino.privacy_loss.lattice import Mesh
from sordino.privacy_loss.saddle import Phases, Saddle
from sordino.privacy_loss.soundness import require_finite
from sordino.privacy_loss.spectra import compose_jumps, compose_masses
from sordino.privacy_loss.tail_sums import BELOW, Curve, Suffix
from sordino.privacy_loss.tilted_windows import LONGEST, Cumulant, Weighted, find_window, log_jump_moment, split_jumps

_MEASURED_PHASES = 16  # with more, the step is not measured and corrected
Plan = tuple[list[Weighted], list[Weighted] | None, float, tuple[int, int]]

_STEEPEST = 100.0  # e-folds of the tilt from one lattice point to the next
_LEAST_Q = 1e-280  # a probability in the denominator counts as at least this: below, floats lose precision
_MANY, _ORDINARY = 200, (28.0, 60.0)  # releases, and cells per std, for which no measurement is needed
_HALVINGS = 100
_RAREST = -600.0  # logarithm of the tilted share of jumps from which on they are composed apart
_OTHER_TILT, _OTHER_STEP, _OTHER_FINE, _OTHER_LIMIT = 0.93, 0.87, 1.09, 1.07  # of the upper bound's
_OUTSIDE, _LEAST_OUTSIDE = 1e-11, 1e-16  # tilted mass left outside the window, smaller when ε is


@dataclass(frozen=True)
class Setting:
    """Where to compute: tilts of the bulk and of the jumps, the loss that divides them, lattice, centre."""

    theta: float
    mesh: Mesh
    centre: float
    limit: float = math.inf
    jump_theta: float = 0.0
    outside: float = 1e-11

    def tilt(self, step: float, jumps: bool = False) -> float:
        """Returns the tilt for a lattice of this step; one that tells no two neighbouring points apart is of no use."""
        return min(self.jump_theta if jumps else self.theta, _STEEPEST / step)

    def for_lower_bound(self, centre: float) -> Setting:
        """Returns another lattice, tilt and division for a composed lower bound: what misleads the upper bound misses
        the lower one.
        """
        return Setting(
            theta=_OTHER_TILT * self.theta,
            mesh=replace(self.mesh, step=_OTHER_STEP * self.mesh.step, fine=_OTHER_FINE * self.mesh.fine),
            centre=centre,
            limit=_OTHER_LIMIT * self.limit,
            jump_theta=_OTHER_TILT * self.jump_theta,
            outside=self.outside,
        )


def choose_setting(
    phases: Phases, add: bool, saddle: Saddle, spread: float, cut: float, tolerance: float, *, measured: bool = True
) -> Setting:
    """Returns the setting of a composed bound, the lattice for a saddle point; the lattice step is measured and
    corrected unless that is not worth it.
    """
    steps = sum(count for _, count in phases)
    theta = saddle.theta
    # The step at which rounding losses up raises ε by about the tolerance, by the formula above.
    scale = max(saddle.epsilon, 1e-2 * spread)
    fine = 1.5 * math.sqrt(1 / (6 * tolerance))
    apart = saddle.limit < math.inf
    step = math.sqrt(12 * tolerance * scale / (steps * ((saddle.slope if apart else theta) + 1)))
    ordinary = steps >= _MANY and _ORDINARY[0] < spread / (math.sqrt(steps) * step) < _ORDINARY[1]
    # The formula is an approximation: measure what the step really costs against a step three times finer, and correct it.
    if measured and len(phases) <= _MEASURED_PHASES and not apart and not ordinary:
        meshes = Mesh(step, fine, cut), Mesh(step / 3, 3 * fine, cut)
        coarse, exact = (Cumulant(round_up_phases(phases, add, mesh)[0], mesh.step)(theta) for mesh in meshes)
        excess = max(coarse - exact, 1e-15 * steps) * 9 / 8
        step *= min(max(math.sqrt(tolerance * scale * theta / excess), 0.2), 10.0)
    # Losses that are multiples of one number sit on lattice points, which costs nothing.
    unit = _common_spacing(phases)
    if unit > step:
        step = unit / math.ceil(unit / step)
    outside = min(_OUTSIDE, max(_LEAST_OUTSIDE, 1e-9 * scale))
    return Setting(theta, Mesh(step, fine, cut), max(saddle.epsilon, 0.0), saddle.limit, saddle.jump_theta, outside)


def _common_spacing(phases: Phases) -> float:
    """Returns the common spacing of losses that come in multiples of one number, or 0."""
    units = {s.pair.loss_spacing() if s.rate == 1.0 and not s.subset else 0.0 for s, _ in phases}
    return units.pop() if len(units) == 1 else 0.0


def round_up_phases(phases: Phases, add: bool, mesh: Mesh) -> tuple[list[Weighted], float]:
    """Returns the phases rounded up on a lattice, to be composed into an upper bound, and the probability that any of
    them has infinite loss.
    """
    parts, log_finite = [], 0.0
    for sampled, count in phases:
        atoms = sampled.round_up(mesh, add)
        parts.append(Weighted.from_masses(atoms.index, atoms.mass, count))
        log_finite += count * math.log1p(-min(atoms.infinite, 1 - 1e-16))
    return parts, -math.expm1(log_finite)


@dataclass(frozen=True, eq=False)
class UpperBound:
    """An upper bound on δ(ε): curves that add up, and the probability of infinite loss."""

    curves: tuple[Curve, ...]
    infinite: float
    length: int  # points of the longest transform

    @property
    def floor(self) -> float:
        """The smallest ε that the tilt resolves."""
        return max((float(curve.loss[0]) for curve in self.curves), default=0.0)

    def delta(self, epsilon: float) -> float:
        """Returns the composed upper bound on δ at ε, at most 1."""
        if epsilon < self.floor:
            return 1.0
        return min(
            1.0, self.infinite + math.fsum(curve.delta(epsilon) * _capped_exp(curve.log_scale) for curve in self.curves)
        )

    def epsilon(self, delta: float) -> float:
        """Returns the composed upper bound on ε at δ, rounded up; at least `floor`, infinite when δ is not reached."""
        # δ cannot go below the mass at infinite loss, whatever ε is.
        if delta <= self.infinite:
            return math.inf
        low = max(0.0, self.floor)
        if self.delta(low) <= delta:
            return low
        # Beyond the last loss of the window no mass is left to remove.
        high = max((float(curve.loss[-1]) for curve in self.curves), default=0.0)
        if high <= low or self.delta(high) > delta:
            return math.inf
        # Bisect from above: the returned end always fulfils δ(ε) ≤ δ.
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            if not low < middle < high or high - low < 1e-9 * high:
                break
            low, high = (middle, high) if self.delta(middle) > delta else (low, middle)
        return high


def _capped_exp(exponent: float) -> float:
    """Returns e^exponent, capped where floats overflow."""
    return math.exp(min(exponent, 700.0))


def _has_jumps(jumps: Sequence[Weighted]) -> bool:
    """Returns whether any part has losses that are composed apart."""
    return any(len(jump.index) for jump in jumps)


def _split_bulk_and_jumps(
    parts: Sequence[Weighted], setting: Setting, step: float, extra: float = 0.0
) -> tuple[list[Weighted], list[Weighted]]:
    """Returns the bulk and the jumps of every part for a composed upper bound, or all of a part as bulk where no float
    holds the share of its jumps.
    """
    bulk, jumps = split_jumps(parts, setting.limit / step)
    if _has_jumps(jumps):
        tilt, cumulant = setting.tilt(step, jumps=True) + extra, Cumulant(bulk, step)
        if log_jump_moment(cumulant, jumps, step, tilt) - cumulant(tilt) < _RAREST:
            return split_jumps(parts, math.inf)
    return bulk, jumps


def compose_upper_bound(phases: Phases, add: bool, setting: Setting, longest: int = LONGEST) -> UpperBound:
    """Returns the composed upper bound on ε and δ of phases at a setting; the step is widened until the transform is
    affordable.
    """
    mesh = setting.mesh
    while True:
        # Round every release up on the lattice, and find the window that holds the tilted sum.
        parts, infinite = round_up_phases(phases, add, mesh)
        if not all(len(part.index) for part in parts):
            return UpperBound((), 1.0, 0)
        bulk, jumps = _split_bulk_and_jumps(parts, setting, mesh.step)
        cumulant = Cumulant(bulk, mesh.step)
        theta, jump_theta = setting.tilt(mesh.step), setting.tilt(mesh.step, jumps=True)
        frame = find_window(cumulant, theta, mesh.step, setting.outside)
        jump_frame = (0, 0)
        if _has_jumps(jumps):
            jump_frame = find_window(cumulant, jump_theta, mesh.step, setting.outside, jumps)
        if max(frame[1], jump_frame[1]) <= longest:
            break
        mesh = replace(mesh, step=2 * mesh.step)
    # Compose without jumps, and the outcomes with at least one jump at a tilt of their own; the two add up to δ.
    curves = [Curve(compose_masses(bulk, theta, mesh.step, frame), setting.centre, setting.outside)]
    if _has_jumps(jumps):
        composed = compose_jumps(bulk, jumps, jump_theta, mesh.step, jump_frame)
        curves.append(Curve(composed, setting.centre, setting.outside))
    return UpperBound(tuple(curves), infinite, max(frame[1], jump_frame[1]))


@dataclass(frozen=True, eq=False)
class LowerBound:
    """P[J ≥ j] (from below) and Q[J ≥ j] (from above), J the sum of bin numbers; logarithms of a common scale."""

    p: np.ndarray
    q: np.ndarray
    log_p: float
    log_q: float

    def epsilon(self, delta: float) -> float:
        """Returns the largest ε that the composed lower bound proves: max_j log((P[≥ j] − δ)/Q[≥ j])."""
        excess = self.p - _capped_exp(math.log(delta) - self.log_p)
        use = excess > 0
        if not use.any():
            return 0.0
        least = np.maximum(self.q[use], _LEAST_Q)
        value = float((np.log(excess[use]) - np.log(least)).max()) + self.log_p - self.log_q
        return require_finite("a lower bound on ε", max(0.0, value))

    def delta(self, epsilon: float) -> float:
        """Returns the largest δ at ε proved: max_j P[≥ j] − e^ε Q[≥ j]."""
        gain = self.p - _capped_exp(epsilon + self.log_q - self.log_p) * self.q
        return require_finite("a lower bound on δ", min(1.0, max(0.0, float(gain.max())) * _capped_exp(self.log_p)))


def compose_lower_bound(phases: Phases, add: bool, setting: Setting, longest: int = LONGEST) -> LowerBound:
    """Returns the composed lower bound on ε and δ of phases, from binned outputs: P at the setting's tilts, Q at one
    more.
    """
    mesh = setting.mesh
    while True:
        step = mesh.step
        # Bin the outputs of every release: a function of the output, so what is proved about bins holds for the release.
        p_parts, q_parts = [], []
        for sampled, count in phases:
            bins = sampled.bin_outputs(mesh, add)
            p_parts.append(Weighted.from_masses(bins.index, bins.p, count))
            known = bins.log_q > -math.inf
            q_parts.append(Weighted(bins.index[known], bins.log_q[known], count))
        # Plan one composition for P and one for Q, and one more of each where there are jumps.
        plans: list[Plan] = []
        for parts, extra in ((p_parts, 0.0), (q_parts, 1.0)):
            bulk, jumps = _split_bulk_and_jumps(parts, setting, step, extra)
            cumulant = Cumulant(bulk, step)
            tilt = setting.tilt(step) + extra
            plans.append((bulk, None, tilt, find_window(cumulant, tilt, step, setting.outside)))
            if _has_jumps(jumps):
                tilt = setting.tilt(step, jumps=True) + extra
                plans.append((bulk, jumps, tilt, find_window(cumulant, tilt, step, setting.outside, jumps)))
        if max(plan[3][1] for plan in plans) <= longest:
            break
        mesh = replace(mesh, step=2 * step)
    # Bin numbers lag behind losses by up to a step a release, so the place to look at is moved by as much.
    lag = Cumulant(p_parts, step).tilted_moments(0.0)[0] - math.fsum(
        n * s.native_losses(add, mesh.cut).mean for s, n in phases
    )
    centre = setting.centre + lag
    # Q is tilted by one more, but has to be known as far down as P is.
    below = BELOW / min(plan[2] for plan in plans)
    sums = []
    for bulk, apart, tilt, frame in plans:
        composed = (
            compose_masses(bulk, tilt, step, frame) if apart is None else compose_jumps(bulk, apart, tilt, step, frame)
        )
        sums.append(Suffix(composed, centre, setting.outside, below))
    # P from below and Q from above, on common indices: the first half of the plans is about P.
    half = len(sums) // 2
    start = max(one.first for one in sums)
    stop = max(one.first + len(one.mass) for one in sums)
    p, log_p = _add_sums(sums[:half], start, stop, -1.0)
    q, log_q = _add_sums(sums[half:], start, stop, 1.0)
    return LowerBound(p, q, log_p, log_q)


def _add_sums(sums: Sequence[Suffix], start: int, stop: int, sign: float) -> tuple[np.ndarray, float]:
    """Returns the sum of several suffix sums on one scale for a composed lower bound, each from below (sign −1) or from
    above (sign 1).
    """
    log_scale = max(one.log_scale for one in sums)
    total = np.zeros(stop - start)
    for one in sums:
        mass, slack = one.sums_between(start, stop)
        total += (mass + sign * slack) * _capped_exp(one.log_scale - log_scale)
    return total, log_scale
