"""Certified ε(δ) and δ(ε) of a composition of sampled releases, one direction at a time.

The lattice step follows from the accuracy asked for: connect-the-dots raises K(θ) by about T·h²θ(θ+1)/12, hence ε by
ΔK/θ; the step is chosen so that this is `tolerance`·ε at the saddle point θ* = argmin (K(θ) + log 1/δ)/θ, measured
once and corrected (masses that sit on a lattice point cost nothing).

**Privacy:** see `lattice` and `compose`. Step, tilt and window are found from approximations, but they change only how
tight the two bounds are, never whether they hold.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.fft import next_fast_len

from sordino.accounting.compose import LONGEST, Cumulant, Tail, Weighted, tail, window
from sordino.accounting.lattice import Mesh
from sordino.accounting.saddle import Phases, Saddle

_MEASURED_PHASES = 16  # with more, the step is not measured and corrected


@dataclass(frozen=True)
class Setting:
    """Where to compute: tilt, lattice, and the ε around which sums are scaled."""

    theta: float
    mesh: Mesh
    centre: float


def choose(phases: Phases, add: bool, saddle: Saddle, spread: float, cut: float, tolerance: float) -> Setting:
    """The lattice for a saddle point."""
    steps = sum(count for _, count in phases)
    theta = saddle.theta
    scale = max(saddle.epsilon, 1e-2 * spread)
    fine = 1.5 * math.sqrt(1 / (6 * tolerance))
    step = math.sqrt(12 * tolerance * scale / (steps * (theta + 1)))
    if len(phases) <= _MEASURED_PHASES:
        meshes = Mesh(step, fine, cut), Mesh(step / 3, 3 * fine, cut)
        coarse, exact = (Cumulant(upper_parts(phases, add, mesh)[0], mesh.step)(theta) for mesh in meshes)
        excess = max(coarse - exact, 1e-15 * steps) * 9 / 8
        step *= min(max(math.sqrt(tolerance * scale * theta / excess), 0.2), 10.0)
    unit = _unit(phases)
    if unit:
        step = unit / math.ceil(unit / step)
    return Setting(theta, Mesh(step, fine, cut), max(saddle.epsilon, 0.0))


def _unit(phases: Phases) -> float:
    """The common spacing of losses that come in multiples of one number, or 0."""
    units = {getattr(s.pair, "unit", 0.0) if s.rate == 1.0 and not s.subset else 0.0 for s, _ in phases}
    return units.pop() if len(units) == 1 else 0.0


def upper_parts(phases: Phases, add: bool, mesh: Mesh) -> tuple[list[Weighted], float]:
    """The phases rounded up, and the probability that any of them has infinite loss."""
    parts, log_finite = [], 0.0
    for sampled, count in phases:
        atoms = sampled.upper(mesh, add)
        parts.append(Weighted(atoms.index, atoms.mass, count))
        log_finite += count * math.log1p(-min(atoms.infinite, 1 - 1e-16))
    return parts, -math.expm1(log_finite)


def _frame(parts: Sequence[Weighted], theta: float, step: float) -> tuple[int, int]:
    first, length, _ = window(Cumulant(parts, step), theta, step)
    return first, length


def upper_tail(phases: Phases, add: bool, setting: Setting) -> tuple[Tail, float]:
    """The composed upper bound at a setting; the step is widened until the transform is affordable."""
    mesh = setting.mesh
    while True:
        parts, infinite = upper_parts(phases, add, mesh)
        frame = _frame(parts, setting.theta, mesh.step)
        if frame[1] <= LONGEST:
            return tail(parts, setting.theta, mesh.step, frame, setting.centre), infinite
        mesh = replace(mesh, step=2 * mesh.step)


def lower_tails(phases: Phases, add: bool, setting: Setting) -> tuple[Tail, Tail]:
    """Suffix sums of the binned P and Q on the same lattice."""
    mesh = setting.mesh
    while True:
        p_parts, q_parts = [], []
        for sampled, count in phases:
            bins = sampled.bins(mesh, add)
            p_parts.append(Weighted(bins.index, bins.p, count))
            q_parts.append(Weighted(bins.index, bins.q, count))
        step = mesh.step
        frames = [_frame(p_parts, setting.theta, step), _frame(q_parts, setting.theta + 1, step)]
        first = min(frame[0] for frame in frames)
        last = max(frame[0] + frame[1] for frame in frames)
        if last - first <= 2 * LONGEST:
            break
        mesh = replace(mesh, step=2 * step)
    frame = (first, next_fast_len(last - first, real=True))
    p = tail(p_parts, setting.theta, step, frame, setting.centre)
    q = tail(q_parts, setting.theta + 1, step, frame, setting.centre)
    size = min(len(p.loss), len(q.loss))
    return _last(p, size), _last(q, size)


def _last(one: Tail, size: int) -> Tail:
    return Tail(
        one.loss[-size:], one.centre, one.mass[-size:], one.shrunk[-size:], one.slack[-size:], one.log_scale
    )


def epsilon_above(curve: Tail, infinite: float, delta: float) -> float:
    """ε at δ from suffix sums: the zero of Σ_{l > ε} p(l)(1 − e^{ε−l}) + slack − δ, rounded up.

    NaN when it lies below the part of the curve that the tilt resolves.
    """
    left = delta - infinite
    if left <= 0:
        return math.inf
    goal = _exp(math.log(left) - curve.log_scale)
    with np.errstate(over="ignore", invalid="ignore"):
        height = curve.mass - np.exp(np.minimum(curve.loss - curve.centre, 700.0)) * curve.shrunk + curve.slack
    over = np.flatnonzero(height > goal)
    if not len(over):
        return 0.0 if curve.loss[0] <= 0 else math.nan
    j = int(over[-1])
    if j + 1 >= len(curve.loss) or curve.shrunk[j + 1] <= 0:
        return max(0.0, float(curve.loss[min(j + 1, len(curve.loss) - 1)]))
    excess = float(curve.mass[j + 1] + curve.slack[j] - goal)
    if excess <= 0:
        return max(0.0, float(curve.loss[j]))
    root = curve.centre + math.log(excess / float(curve.shrunk[j + 1]))
    return max(0.0, min(root, float(curve.loss[j + 1])))


def delta_above(curve: Tail, infinite: float, epsilon: float) -> float:
    """δ at ε, from above."""
    j = int(np.searchsorted(curve.loss, epsilon))
    if j >= len(curve.loss):
        return min(1.0, infinite + math.exp(min(0.0, curve.log_scale)) * float(curve.slack[-1] + curve.mass[-1]))
    value = float(curve.mass[j] - math.exp(epsilon - curve.centre) * curve.shrunk[j])
    return min(1.0, infinite + max(value, 0.0) * _exp(curve.log_scale) + float(curve.slack[j]) * _exp(curve.log_scale))


def _exp(exponent: float) -> float:
    return math.exp(min(exponent, 700.0))


def epsilon_below(p: Tail, q: Tail, delta: float) -> float:
    """The largest ε that the binned outputs prove: max_j log((P[≥ j] − δ)/Q[≥ j])."""
    goal = math.exp(min(math.log(delta) - p.log_scale, 700.0))
    excess = p.mass - p.slack - goal
    use = excess > 0
    if not use.any():
        return 0.0
    value = (np.log(excess[use]) - np.log((q.mass + q.slack)[use])).max() + p.log_scale - q.log_scale
    return max(0.0, float(value))


def delta_below(p: Tail, q: Tail, epsilon: float) -> float:
    """The largest δ at ε that the binned outputs prove."""
    gain = p.mass - p.slack - _exp(epsilon + q.log_scale - p.log_scale) * (q.mass + q.slack)
    return max(0.0, float(gain.max())) * _exp(p.log_scale)
