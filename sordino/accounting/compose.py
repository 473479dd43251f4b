"""Composition of lattice losses: exponential tilting, one Fourier transform, certified aliasing and rounding.

Koskela, Jälkö & Honkela 2020 (Fourier accountant), Gopi, Lee & Wutschitz 2021 (aliasing), Zheng et al. 2020 and
Alghamdi et al. 2023 (saddle point). With K(θ) = Σ Tᵢ log E_P e^{θLᵢ}, the tilted masses p(l)e^{θl−K(θ)} are centred at
K'(θ); the tilt puts the centre where δ(ε) lives, so δ has relative precision at any size.

**Privacy:** the transform is periodic, so mass outside the window of length n·h appears inside it. Chernoff bounds on
the tilted masses limit the mass outside to `_OUTSIDE` on each side; what it can hide from δ is added to the upper
bound and taken from the lower one. Rounding errors of the transform are bounded by its length, T and the machine
precision and are treated alike. Frequencies whose product is below `_SILENT` are dropped, and charged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from sordino.accounting.lattice import Indices
from sordino.accounting.pairs import Array

_OUTSIDE = 1e-12
_SILENT = 1e-24
_EPS = 2.3e-16
_FLOATING = 200.0  # exponents kept when untilting
LONGEST = 1 << 23  # points of one transform

NDComplex = NDArray[np.complex128]


@dataclass(frozen=True, eq=False)
class Weighted:
    """Masses at h·index (of P or of Q), released `count` times."""

    index: Indices
    mass: Array
    count: int


class Cumulant:
    """K(θ) of the composition, and its derivatives by the way."""

    def __init__(self, parts: Sequence[Weighted], step: float) -> None:
        self.parts = []
        for part in parts:
            keep = part.mass > 0
            self.parts.append((part.index[keep] * step, np.log(part.mass[keep]), part.count))

    def log_mass(self, theta: float) -> list[tuple[float, int]]:
        """(log E e^{θL}, count) of every part."""
        result = []
        for loss, log_mass, count in self.parts:
            exponent = log_mass + theta * loss
            top = exponent.max()
            result.append((float(top + math.log(np.exp(exponent - top).sum())), count))
        return result

    def __call__(self, theta: float) -> float:
        """K(θ)."""
        return math.fsum(value * count for value, count in self.log_mass(theta))

    def tilted_moments(self, theta: float) -> tuple[float, float]:
        """K'(θ) and √K''(θ)."""
        mean = variance = 0.0
        for loss, log_mass, count in self.parts:
            exponent = log_mass + theta * loss
            weight = np.exp(exponent - exponent.max())
            weight /= weight.sum()
            centre = float(weight @ loss)
            mean += count * centre
            variance += count * float(weight @ (loss - centre) ** 2)
        return mean, math.sqrt(variance)


def window(cumulant: Cumulant, theta: float, step: float) -> tuple[int, int, float]:
    """First index and length of a window outside which the tilted mass is at most `_OUTSIDE` a side, and K(θ)."""
    base = cumulant(theta)
    mean, std = cumulant.tilted_moments(theta)
    scale = max(std, step)
    need = -math.log(_OUTSIDE)
    top, bottom = math.inf, -math.inf
    for factor in (1.0, 2.0, 3.5, 5.0, 6.5, 7.4, 9.0):
        s = factor / scale
        top = min(top, (cumulant(theta + s) - base + need) / s)
        bottom = max(bottom, -(cumulant(theta - s) - base + need) / s)
    first = math.floor(min(bottom, mean) / step) - 1
    length = math.ceil(max(top, mean) / step) + 2 - first
    return first, next_fast_len(length, real=True), base


def tilted(parts: Sequence[Weighted], cumulant: Cumulant, theta: float, step: float, length: int) -> tuple[Array, float]:
    """The tilted masses of the sum, at index mod length, and a bound on the error of each of them."""
    logs = cumulant.log_mass(theta)
    total: NDComplex | None = None
    active: Indices | None = None
    steps = 0
    order = sorted(range(len(parts)), key=lambda k: -parts[k].count)
    for k in order:
        part, (log_mass, count) = parts[k], logs[k]
        keep = part.mass > 0
        index, mass = part.index[keep], part.mass[keep]
        weight = np.exp(np.log(mass) + theta * step * index - log_mass)
        spectrum = rfft(np.bincount(np.mod(index, length), weight, length))
        steps += count
        if active is not None:
            spectrum = spectrum[active]
        factor = _power(spectrum, count)
        total = factor if total is None else total * factor
        loud = np.abs(total) > _SILENT
        if active is None:
            active = np.flatnonzero(loud)
            total = total[active]
        elif not loud.all():
            active, total = active[loud], total[loud]
    assert total is not None
    assert active is not None
    whole = np.zeros(length // 2 + 1, dtype=np.complex128)
    whole[active] = total
    masses = irfft(whole, length)
    # |error of a mass| ≤ mean over frequencies of |error of the product|, each factor relatively precise to log₂(n)·eps
    relative = _EPS * (math.log2(length) + 2) * (steps + 4)
    error = 2 * float(np.abs(total).sum()) / length * relative + _SILENT + _EPS * float(masses.max())
    return masses, error


def _power(spectrum: NDComplex, count: int) -> NDComplex:
    if count == 1:
        return spectrum
    result = np.zeros_like(spectrum)
    size = spectrum.real**2 + spectrum.imag**2
    loud = size > math.exp(2 * math.log(_SILENT) / count)
    if count <= 16:
        result[loud] = spectrum[loud] ** count
    else:
        result[loud] = np.exp(count * np.log(spectrum[loud]))
    return result


@dataclass(frozen=True, eq=False)
class Tail:
    """Sums of composed masses from each lattice point on, scaled: true value = scaled · e^{log_scale}."""

    loss: Array  # ascending lattice points
    centre: float
    mass: Array  # Σ p(l)
    shrunk: Array  # Σ p(l)·e^{centre − l}
    slack: Array  # bound on the error of `mass`
    log_scale: float


def tail(parts: Sequence[Weighted], theta: float, step: float, frame: tuple[int, int], centre: float) -> Tail:
    """Suffix sums of the composition, computed at tilt θ, within a frame (first index, length)."""
    cumulant = Cumulant(parts, step)
    first, length = frame
    masses, error = tilted(parts, cumulant, theta, step, length)
    masses = np.maximum(np.roll(masses, -(first % length)), 0.0)
    loss = (first + np.arange(length)) * step
    # untilt around the centre; keep what stays in floating range
    exponent = -theta * (loss - centre)
    start = int(np.argmax(exponent < _FLOATING))
    loss = loss[start:]
    weight = np.exp(np.maximum(exponent[start:], -700.0))
    untilted = masses[start:] * weight
    total = np.cumsum(untilted[::-1])[::-1]
    with np.errstate(under="ignore"):
        shrunk = np.cumsum((untilted * np.exp(np.clip(centre - loss, -700.0, _FLOATING)))[::-1])[::-1]
    # rounding: error·Σ weights; aliasing: mass _OUTSIDE a side at the largest weight of the suffix, lost or gained
    slack = error * np.cumsum(weight[::-1])[::-1] + 2 * _OUTSIDE * weight + 4 * _EPS * total
    return Tail(loss, centre, total, shrunk, slack, cumulant(theta) - theta * centre)
