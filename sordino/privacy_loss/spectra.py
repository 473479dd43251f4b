"""Products of transforms over all phases, with a bound on the error of every frequency.

A phase has a bulk b and, when rare large losses are composed apart, jumps j. The outcomes of T releases with at least
one jump are D = (b + j)^T − b^T. Pairs (B, D) multiply like

    (B₁, D₁)·(B₂, D₂) = (B₁B₂, D₁(B₂ + D₂) + B₁D₂)

so D is a sum of products and keeps its relative precision without a division. (Divided by b, it is lost where the bulk
of an unlike phase has died away and only rounding is left of it.)

**Privacy:** with |b|, |b + j| ≤ g per frequency and e, e_j the errors of the transforms, relative to masses of total
one, the product of N releases is within G·Σne/g, and D within G·(Σne_j/g + (Σne/g)(Σn|j|/g)), G = Πgⁿ: mean-value
theorem. A frequency is left out when the same quantities prove it smaller than `SILENT`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import irfft, rfft

from sordino.privacy_loss.pairs import Array
from sordino.privacy_loss.soundness import require_all_finite, require_finite
from sordino.privacy_loss.tilted_windows import Cumulant, Weighted, log_jump_moment

SILENT = 1e-24
EPS = 2.3e-16
_ARITHMETIC = 6.0  # roundings of a product and of a power, in EPS per factor, on top of the transform's log₂(n)

NDComplex = NDArray[np.complex128]


@dataclass(frozen=True, eq=False)
class Composed:
    """Tilted masses of a sum from index `first` on, true mass = value · e^{log_total − θ(l)}; error of each value."""

    first: int
    step: float
    theta: float
    log_total: float
    masses: Array
    error: float

    def __post_init__(self) -> None:
        require_all_finite("composed masses", self.masses)
        require_finite("the error of composed masses", self.error)
        require_finite("the logarithm of a composed mass", self.log_total)


def transform(part: Weighted, theta: float, step: float, log_scale: float, length: int) -> tuple[NDComplex, float]:
    """Returns the spectrum of one phase's losses: the transform of its tilted masses divided by e^{log_scale}, and the
    largest error of a frequency.

    Every output of a fast transform is a sum in which each mass passes log₂(n) roundings; the masses themselves are
    exponentials, as precise as their exponents are.
    """
    lift = theta * step * part.index
    weight = np.exp(part.log_mass + lift - log_scale)
    total = float(weight.sum())
    exponents = 0.5 * (float(weight @ (np.abs(part.log_mass) + np.abs(lift))) + total * abs(log_scale))
    spectrum = np.asarray(rfft(np.bincount(np.mod(part.index, length), weight, length)))
    return spectrum, EPS * ((math.log2(length) + _ARITHMETIC) * total + exponents)


def power(base: NDComplex, count: int) -> NDComplex:
    """Returns the spectrum of `count` equal releases, base^count, frequency by frequency, by squaring."""
    result: NDComplex | None = None
    while True:
        if count & 1:
            result = base if result is None else result * base
        count >>= 1
        if not count:
            assert result is not None
            return result
        base = base * base


def _jump_power(plain: NDComplex, jump: NDComplex, count: int) -> tuple[NDComplex, NDComplex]:
    """Returns the spectra (B, D) of bulk and outcomes with a jump after `count` releases, by squaring."""
    result: tuple[NDComplex, NDComplex] | None = None
    while True:
        if count & 1:
            result = (plain, jump) if result is None else _multiply_with_jumps(*result, plain, jump)
        count >>= 1
        if not count:
            assert result is not None
            return result
        plain, jump = plain * plain, jump * (2 * plain + jump)


def _multiply_with_jumps(
    plain: NDComplex, jump: NDComplex, other_plain: NDComplex, other_jump: NDComplex
) -> tuple[NDComplex, NDComplex]:
    """Returns the product of two pairs of spectra (bulk, outcomes with a jump), by the formula above."""
    return plain * other_plain, jump * (other_plain + other_jump) + plain * other_jump


def compose_masses(parts: Sequence[Weighted], theta: float, step: float, frame: tuple[int, int]) -> Composed:
    """Returns the masses of the composition at tilt θ within a frame, by multiplying the spectra of all phases."""
    cumulant = Cumulant(parts, step)
    logs = cumulant.log_mass(theta)
    length = frame[1]
    active = np.arange(length // 2 + 1)
    total = np.ones(len(active), dtype=np.complex128)
    size, rounding = np.ones(len(active)), np.zeros(len(active))  # G, Σne/g
    # Phases with the most releases first: they silence most frequencies, which need not be computed for the others.
    for k in sorted(range(len(parts)), key=lambda k: -parts[k].count):
        log_mass, count = logs[k]
        whole, error = transform(parts[k], theta, step, log_mass, length)
        spectrum = whole[active]
        largest = np.abs(spectrum) + error
        # Before the power is taken: most frequencies of many releases end here.
        loud = largest > math.exp(math.log(SILENT) / count)
        if not loud.all():
            active, total, size, rounding = active[loud], total[loud], size[loud], rounding[loud]
            spectrum, largest = spectrum[loud], largest[loud]
        total = total * power(spectrum, count)
        size *= largest**count
        rounding += count * error / largest
        loud = size > SILENT
        if not loud.all():
            active, total, size, rounding = active[loud], total[loud], size[loud], rounding[loud]
    return _masses_from_frequencies(total, size * rounding, active, frame, step, theta, cumulant(theta))


def compose_jumps(
    parts: Sequence[Weighted], jumps: Sequence[Weighted], theta: float, step: float, frame: tuple[int, int]
) -> Composed:
    """Returns the masses of outcomes with at least one jump, relative to the total of such outcomes, by multiplying
    spectra of bulk and jumps.
    """
    cumulant = Cumulant(parts, step)
    all_logs = Cumulant(_join_bulk_and_jumps(parts, jumps), step).log_mass(theta)
    log_total = log_jump_moment(cumulant, jumps, step, theta)
    share = math.exp(min(log_total - math.fsum(value * count for value, count in all_logs), 0.0))
    # The jumps still to come are at most this many, in total mass. They are counted as such: the difference between all and
    # the bulk is zero for jumps rarer than 1e-16, and every frequency would be left out as silent.
    expected = [n * _jump_share(jump, theta, step, log_all) for jump, (log_all, n) in zip(jumps, all_logs, strict=True)]
    order = sorted(range(len(parts)), key=lambda k: -parts[k].count)
    length = frame[1]
    active = np.arange(length // 2 + 1)
    plain, jump = np.ones(len(active), dtype=np.complex128), np.zeros(len(active), dtype=np.complex128)
    size = np.ones(len(active))
    rounding, jump_rounding, reach = np.zeros((3, len(active)))  # Σne/g, Σne_j/g, Σn|j|/g
    # Multiply the phases one by one, with the bound on every frequency and on its error beside them.
    for place, k in enumerate(order):
        log_all, count = all_logs[k]
        b, b_error = transform(parts[k], theta, step, log_all, length)
        j, j_error = transform(jumps[k], theta, step, log_all, length)
        b, j = b[active], j[active]
        error = b_error + j_error
        largest = np.maximum(np.abs(b), np.abs(b + j)) + error
        size *= largest**count
        rounding += count * error / largest
        jump_rounding += count * j_error / largest
        reach += count * (np.abs(j) + j_error) / largest
        # Leave frequencies out that cannot matter any more, whatever is still to come.
        to_come = math.fsum(expected[later] for later in order[place + 1 :])
        loud = size * (reach + to_come) > SILENT * share
        if not loud.all():
            active, plain, jump, b, j = active[loud], plain[loud], jump[loud], b[loud], j[loud]
            size, rounding, jump_rounding, reach = size[loud], rounding[loud], jump_rounding[loud], reach[loud]
        plain, jump = _multiply_with_jumps(plain, jump, *_jump_power(b, j, count))
    error_of_each = size * (jump_rounding + rounding * reach) / share
    return _masses_from_frequencies(jump / share, error_of_each, active, frame, step, theta, log_total)


def _jump_share(jump: Weighted, theta: float, step: float, log_all: float) -> float:
    """Returns the share of a release's tilted mass that is in its jumps."""
    return float(np.exp(jump.log_mass + theta * step * jump.index - log_all).sum())


def _join_bulk_and_jumps(parts: Sequence[Weighted], jumps: Sequence[Weighted]) -> list[Weighted]:
    """Returns every part of a composition with its jumps put back, so that bulk and jumps share one spectrum."""
    return [
        Weighted(np.concatenate((p.index, j.index)), np.concatenate((p.log_mass, j.log_mass)), p.count)
        for p, j in zip(parts, jumps, strict=True)
    ]


def _masses_from_frequencies(
    product: NDComplex,
    errors: Array,
    active: NDArray[np.int64],
    frame: tuple[int, int],
    step: float,
    theta: float,
    log_total: float,
) -> Composed:
    """Returns composed masses from a spectrum's frequencies. A mass is a mean over frequencies, and so is its error;
    each frequency stands for two.
    """
    first, length = frame
    # Frequencies that were not computed are zero; their size is in the error already.
    whole = np.zeros(length // 2 + 1, dtype=np.complex128)
    whole[active] = product
    masses = irfft(whole, length)
    # The inverse transform adds a rounding error of its own, in proportion to the logarithm of its length.
    back = EPS * (math.log2(length) + _ARITHMETIC) * float(np.abs(product).sum())
    error = 2 * (float(errors.sum()) + back) / length + SILENT
    # True masses are not negative, so what rounding made negative is cut; the error bound covers the cut.
    masses = np.maximum(np.roll(masses, -(first % length)), 0.0)
    return Composed(first, step, theta, log_total, masses, error)
