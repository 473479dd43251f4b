"""Composition of lattice losses: exponential tilting, one Fourier transform, certified aliasing and rounding.

Koskela, Jälkö & Honkela 2020 (Fourier accountant), Gopi, Lee & Wutschitz 2021 (aliasing), Zheng et al. 2020 and
Alghamdi et al. 2023 (saddle point). With K(θ) = Σ Tᵢ log E_P e^{θLᵢ}, the tilted masses p(l)e^{θl−K(θ)} are centred at
K'(θ); the tilt puts the centre where δ(ε) lives, so δ has relative precision at any size.

**Privacy:** the transform is periodic, so mass outside the window of length n·h appears inside it. Chernoff bounds on
the tilted masses limit the mass outside to a chosen amount on each side; what it can hide from δ is added to the upper
bound and taken from the lower one. Rounding errors of the transform are bounded by its length, T and the machine
precision and are treated alike. Frequencies whose product is below `SILENT` are dropped, and charged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, next_fast_len, rfft

from sordino.accounting.losses.lattice import Indices
from sordino.accounting.losses.pairs import Array

SILENT = 1e-24
EPS = 2.3e-16
_MOST_GROWTH = 600.0
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
        self.parts = [
            (part.index[part.mass > 0] * step, np.log(part.mass[part.mass > 0]), part.count) for part in parts
        ]

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


def split(parts: Sequence[Weighted], limit: float) -> tuple[list[Weighted], list[Weighted]]:
    """Each part cut at an index: the bulk up to it, and the jumps beyond."""
    bulk = [Weighted(p.index[p.index <= limit], p.mass[p.index <= limit], p.count) for p in parts]
    jumps = [Weighted(p.index[p.index > limit], p.mass[p.index > limit], p.count) for p in parts]
    return bulk, jumps


def window(
    cumulant: Cumulant, theta: float, step: float, outside: float, jumps: Sequence[Weighted] | None = None
) -> tuple[int, int]:
    """First index and length of a window outside which the tilted mass is at most `outside` a side.

    With jumps, the tilted mass is that of at least one jump, relative to its own total: see `Spectrum`.
    """
    base = cumulant(theta)
    mean, std = cumulant.tilted_moments(theta)
    scale = max(std, step)
    need = -math.log(outside)
    reach = max((float(p.index[-1]) * step for p in jumps or () if len(p.index)), default=scale)
    top, bottom = math.inf, -math.inf
    factors = {f / scale for f in (1.2, 3.0, 5.0, 6.5, 8.0)}
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
    first = math.floor(min(bottom, mean) / step) - 1
    length = math.ceil(max(top, mean) / step) + 2 - first
    return first, next_fast_len(max(length, 16), real=True)


def log_jump_moment(bulk: Cumulant, jumps: Sequence[Weighted], step: float, theta: float) -> float:
    """Log E[e^{θL}; at least one jump] = K_bulk(θ) + log expm1(Σ T log1p(M_jump/M_bulk))."""
    total = 0.0
    for (log_mass, count), jump in zip(bulk.log_mass(theta), jumps, strict=True):
        keep = jump.mass > 0
        if keep.any():
            exponent = np.log(jump.mass[keep]) + theta * step * jump.index[keep]
            top = float(exponent.max())
            log_jump = top + math.log(float(np.exp(exponent - top).sum()))
            total += count * float(np.logaddexp(0.0, log_jump - log_mass))
    if total <= 0:
        return -math.inf
    grown = total if total > 30 else math.log(math.expm1(total))
    return bulk(theta) + grown


@dataclass(frozen=True, eq=False)
class Composed:
    """Tilted masses of a sum from index `first` on, true mass = value · e^{log_total − θ(l)}; error of each value."""

    first: int
    step: float
    theta: float
    log_total: float
    masses: Array
    error: float


def compose(
    parts: Sequence[Weighted],
    theta: float,
    step: float,
    frame: tuple[int, int],
    jumps: Sequence[Weighted] | None = None,
) -> Composed:
    """The composition at tilt θ within a frame; with `jumps`, only the outcomes with at least one of them."""
    cumulant = Cumulant(parts, step)
    logs = cumulant.log_mass(theta)
    first, length = frame
    total: NDComplex | None = None
    growth: NDComplex | None = None
    active: Indices | None = None
    steps = 0
    for k in sorted(range(len(parts)), key=lambda k: -parts[k].count):
        log_mass, count = logs[k]
        steps += count
        spectrum = _spectrum(parts[k], theta, step, log_mass, length)
        if active is not None:
            spectrum = spectrum[active]
        factor = _power(spectrum, count)
        total = factor if total is None else total * factor
        loud = np.abs(total) > SILENT
        if active is None:
            active, spectrum, total = np.flatnonzero(loud), spectrum[loud], total[loud]
            growth = np.zeros(len(active), dtype=np.complex128)
        elif not loud.all():
            assert growth is not None
            active, spectrum, total, growth = active[loud], spectrum[loud], total[loud], growth[loud]
        if jumps is not None and len(jumps[k].index):
            assert growth is not None
            jump = _spectrum(jumps[k], theta, step, log_mass, length)[active]
            growth = growth + count * _log1p(jump / spectrum)
    assert total is not None
    assert active is not None
    log_total = cumulant(theta)
    if jumps is not None:
        assert growth is not None
        log_total, shift = log_jump_moment(cumulant, jumps, step, theta), log_total
        if float(growth.real.max(initial=0.0)) > _MOST_GROWTH:
            raise OverflowError("too many jumps to be composed apart")
        total = total * _expm1(growth) * math.exp(shift - log_total)
    whole = np.zeros(length // 2 + 1, dtype=np.complex128)
    whole[active] = total
    masses = irfft(whole, length)
    # |error of a mass| ≤ mean over frequencies of |error of the product|, each factor relatively precise to log₂(n)·eps
    relative = EPS * (math.log2(length) + 2) * (steps + 4)
    error = 2 * float(np.abs(total).sum()) / length * relative + SILENT + EPS * float(masses.max())
    masses = np.maximum(np.roll(masses, -(first % length)), 0.0)
    return Composed(first, step, theta, log_total, masses, error)


def _spectrum(part: Weighted, theta: float, step: float, log_mass: float, length: int) -> NDComplex:
    keep = part.mass > 0
    index = part.index[keep]
    weight = np.exp(np.log(part.mass[keep]) + theta * step * index - log_mass)
    return np.asarray(rfft(np.bincount(np.mod(index, length), weight, length)))


def _power(spectrum: NDComplex, count: int) -> NDComplex:
    if count == 1:
        return spectrum
    result = np.zeros_like(spectrum)
    size = spectrum.real**2 + spectrum.imag**2
    loud = size > math.exp(2 * math.log(SILENT) / count)
    if count <= 16:
        result[loud] = spectrum[loud] ** count
    else:
        result[loud] = np.exp(count * np.log(spectrum[loud]))
    return result


def _log1p(x: NDComplex) -> NDComplex:
    """log(1 + x) to relative precision: real part from |1+x|² − 1."""
    real = 0.5 * np.log1p(x.real * (2 + x.real) + x.imag**2)
    return np.asarray(real + 1j * np.arctan2(x.imag, 1 + x.real))


def _expm1(x: NDComplex) -> NDComplex:
    """e^x − 1 to relative precision."""
    half = np.sin(x.imag / 2)
    size = np.minimum(x.real, 700.0)
    real = np.expm1(size) * np.cos(x.imag) - 2 * half**2
    return np.asarray(real + 1j * np.exp(size) * np.sin(x.imag))
