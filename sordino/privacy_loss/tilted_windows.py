"""Composition of lattice losses: exponential tilting, and a window whose aliasing is certified.

Koskela, Jälkö & Honkela 2020 (Fourier accountant), Gopi, Lee & Wutschitz 2021 (aliasing), Zheng et al. 2020 and
Alghamdi et al. 2023 (saddle point). With K(θ) = Σ Tᵢ log E_P e^{θLᵢ}, the tilted masses p(l)e^{θl−K(θ)} are centred at
K'(θ); the tilt puts the centre where δ(ε) lives, so δ has relative precision at any size.

**Privacy:** the transform is periodic, so mass outside the window of length n·h appears inside it. Chernoff bounds on
the tilted masses limit the mass outside to a chosen amount on each side; what it can hide from δ is added to the upper
bound and taken from the lower one. Rounding errors are treated alike: see `spectra`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.fft import next_fast_len

from sordino.privacy_loss.lattice import Indices
from sordino.privacy_loss.pairs import Array

_FEW = 30.0  # e-folds from which on log(1 + x) and x, or log(e^x − 1) and x, are the same float
LONGEST = 1 << 23  # points of one transform


@dataclass(frozen=True, eq=False)
class Weighted:
    """Logarithms of positive masses at h·index (of P or of Q), released `count` times."""

    index: Indices
    log_mass: Array
    count: int

    @staticmethod
    def from_masses(index: Indices, mass: Array, count: int) -> Weighted:
        """Returns the logarithms of masses, leaving out those that are zero."""
        keep = mass > 0
        return Weighted(index[keep], np.log(mass[keep]), count)


class Cumulant:
    """K(θ) of the composition, and its derivatives by the way."""

    def __init__(self, parts: Sequence[Weighted], step: float) -> None:
        self.parts = [(part.index * step, part.log_mass, part.count) for part in parts]

    def log_mass(self, theta: float) -> list[tuple[float, int]]:
        """Returns (log E e^{θL}, count) of every part of a composition: the logarithm of its tilted mass, from which a
        window follows.
        """
        result = []
        for loss, log_mass, count in self.parts:
            exponent = log_mass + theta * loss
            top = exponent.max()
            result.append((float(top + math.log(np.exp(exponent - top).sum())), count))
        return result

    def __call__(self, theta: float) -> float:
        """Returns K(θ)."""
        return math.fsum(value * count for value, count in self.log_mass(theta))

    def tilted_moments(self, theta: float) -> tuple[float, float]:
        """Returns the mean K'(θ) and the standard deviation √K''(θ) of the composed loss when tilted by θ, which place
        a window.
        """
        mean = variance = 0.0
        for loss, log_mass, count in self.parts:
            exponent = log_mass + theta * loss
            weight = np.exp(exponent - exponent.max())
            weight /= weight.sum()
            centre = float(weight @ loss)
            mean += count * centre
            variance += count * float(weight @ (loss - centre) ** 2)
        return mean, math.sqrt(variance)


def split_jumps(parts: Sequence[Weighted], limit: float) -> tuple[list[Weighted], list[Weighted]]:
    """Splits each part of a composition, for its tilted windows, at an index into the bulk up to it and the jumps
    beyond.
    """
    bulk, jumps = [], []
    for part in parts:
        # wherever it is cut, the two together are the part; a bulk without mass would have no logarithm
        low = part.index <= max(limit, float(part.index.min()))
        bulk.append(Weighted(part.index[low], part.log_mass[low], part.count))
        jumps.append(Weighted(part.index[~low], part.log_mass[~low], part.count))
    return bulk, jumps


def find_window(
    cumulant: Cumulant, theta: float, step: float, outside: float, jumps: Sequence[Weighted] | None = None
) -> tuple[int, int]:
    """Returns the first index and the length of a window outside which the tilted mass of a composition is at most
    `outside` a side.

    With jumps, the tilted mass is that of at least one jump, relative to its own total: see `spectra`.
    """
    base = cumulant(theta)
    mean, std = cumulant.tilted_moments(theta)
    scale = max(std, step)
    need = -math.log(outside)
    reach = max((float(p.index.max()) * step for p in jumps or () if len(p.index)), default=scale)
    # Chernoff's bound at several tilts. Each is valid, so the tightest is taken on either side.
    top, bottom = math.inf, -math.inf
    factors = {f / scale for f in (1.2, 3.0, 5.0, 6.5, 8.0)}
    # With jumps the tails are longer than the bulk's spread, and smaller tilts reach them.
    if jumps is not None:
        factors |= {f / max(reach, scale) for f in (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)}
    log_rest = log_jump_moment(cumulant, jumps, step, theta) if jumps is not None else base
    for s in factors:
        if jumps is None:
            up, down = cumulant(theta + s), cumulant(theta - s)
        else:
            up, down = (log_jump_moment(cumulant, jumps, step, theta + t) for t in (s, -s))
        top = min(top, (up - log_rest + need) / s)
        bottom = max(bottom, -(down - log_rest + need) / s)
    # The window holds the mean in any case, and its length is one for which the transform is fast.
    first = math.floor(min(bottom, mean) / step) - 1
    length = math.ceil(max(top, mean) / step) + 2 - first
    return first, next_fast_len(max(length, 16), real=True)


def log_jump_moment(bulk: Cumulant, jumps: Sequence[Weighted], step: float, theta: float) -> float:
    """Returns the log-moment of outcomes with at least one jump, for a tilted window: log E[e^{θL}; at least one jump]
    = K_bulk(θ) + log expm1(Σ T log1p(M_jump/M_bulk)).

    All of it is computed in logarithms: jumps that are rarer than floats are small are still there.
    """
    # Each phase contributes its chance of a jump, relative to its bulk, once for every repetition.
    logs = []
    for (log_mass, count), jump in zip(bulk.log_mass(theta), jumps, strict=True):
        if len(jump.index):
            exponent = jump.log_mass + theta * step * jump.index
            top = float(exponent.max())
            share = top + math.log(float(np.exp(exponent - top).sum())) - log_mass
            # log(1 + x) is x for the small x that would underflow
            logs.append(math.log(count) + (share if share < -_FEW else math.log(float(np.logaddexp(0.0, share)))))
    if not logs:
        return -math.inf
    log_total = float(np.logaddexp.reduce(logs))
    # expm1 of a number that small is the number itself, and taking its exponential would underflow.
    if log_total < -_FEW:
        return bulk(theta) + log_total
    total = math.exp(log_total)
    return bulk(theta) + (total if total > _FEW else math.log(math.expm1(total)))
