"""Live ε during training: the same certified bound as PLD, prepared once per doubling of the steps.

The transform of one release is kept; for t releases only the few frequencies that matter are raised to the power t, and
δ(ε) is summed in the frequency domain: Σ_j w_j p_j = (1/n) Σ_k F_k^t Σ_j w_j e^{iω_k j}, the inner sum being geometric.

**Privacy:** the same lattice, window and charges as in `compose`; ε is rounded up to the next lattice point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.fft import next_fast_len, rfft

from sordino import validate
from sordino.accounting.accountants.pld import CUT, PLD, TOLERANCE, directions
from sordino.accounting.losses.closed import lone_gaussian
from sordino.accounting.losses.compose import EPS, SILENT, Cumulant, Weighted, window
from sordino.accounting.losses.lattice import Sampled
from sordino.accounting.losses.lossdist import choose, upper_parts
from sordino.accounting.losses.phases import collect, is_private, relation_of
from sordino.accounting.losses.saddle import Estimate
from sordino.accounting.losses.sums import above, weight_sum
from sordino.events import Event, Repeat

_FIRST = 16  # releases from which on the transform is kept


class _Direction:
    """One direction, prepared for t releases with low ≤ t ≤ high."""

    def __init__(self, sampled: Sampled, add: bool, low: int, high: int, delta: float) -> None:
        phases = ((sampled, high),)
        cut = CUT * delta / high
        estimate = Estimate(phases, add, cut)
        setting = choose(phases, add, estimate.at_delta(delta), estimate.std, cut, TOLERANCE)
        parts, _ = upper_parts(phases, add, setting.mesh)
        step, theta = setting.mesh.step, setting.theta
        frames = [
            window(Cumulant([Weighted(parts[0].index, parts[0].mass, t)], step), theta, step, setting.outside)
            for t in (low, high)
        ]
        first = min(frame[0] for frame in frames)
        self.length = next_fast_len(max(sum(frame) for frame in frames) - first, real=True)
        self.last = first + self.length - 1
        self.first, self.step, self.theta, self.outside = first, step, theta, setting.outside
        ((self.log_mass, _),) = Cumulant(parts, step).log_mass(theta)
        keep = parts[0].mass > 0
        index = parts[0].index[keep]
        weight = np.exp(np.log(parts[0].mass[keep]) + theta * step * index - self.log_mass)
        spectrum = rfft(np.bincount(np.mod(index, self.length), weight, self.length))
        self.active = np.flatnonzero(np.abs(spectrum) ** low > SILENT)
        self.log_spectrum = np.log(spectrum[self.active])
        self.omega = 2 * math.pi * self.active / self.length
        # frequencies between 0 and n/2 stand for two
        self.double = np.where((self.active == 0) | (2 * self.active == self.length), 1.0, 2.0)
        self.above = above(theta)
        self.kernel = self._kernel()
        self.infinite = sampled.upper(setting.mesh, add).infinite
        self.guess = round(setting.centre / step)

    def epsilon(self, count: int, delta: float) -> float:
        """ε after `count` releases, rounded up to the lattice."""
        product = np.exp(count * self.log_spectrum)
        size = float((np.abs(product) * self.double).sum()) / self.length
        product *= self.kernel
        lost = -math.expm1(count * math.log1p(-min(self.infinite, 0.5)))
        if delta <= lost:
            return math.inf
        error = 2 * size * EPS * (math.log2(self.length) + 2) * (count + 4) + SILENT
        slack = error * weight_sum(self.theta, self.step) + 2 * self.outside / (1 + self.theta) + math.exp(-self.above)

        def exceeds(j: int) -> bool:
            # scaled by the tilt at j: δ(l_j)·e^{θ l_j − K}
            value = float((product * np.exp(1j * self.omega * j)).real.sum()) + slack
            return value > 0 and math.log(value) + count * self.log_mass - self.theta * j * self.step > math.log(
                delta - lost
            )

        low = high = min(max(self.guess, self.first + 1, 0), self.last)
        stride = 1
        while high < self.last and exceeds(high):
            low, high, stride = high, min(high + stride, self.last), 4 * stride
        stride = 1
        while low > 0 and not exceeds(low):
            high, low, stride = low, max(low - stride, 0), 4 * stride
        if low == 0 and not exceeds(0):
            return 0.0
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (middle, high) if exceeds(middle) else (low, middle)
        self.guess = high
        return high * self.step if high < self.last else math.inf

    def _kernel(self) -> NDArray[np.complex128]:
        """Σ_{m≥1} e^{iωm} e^{−θhm}(1 − e^{−hm}), cut where the weights are below e^{−above}.

        Sums that reach beyond the window wrap round and count mass from its bottom: more, never less.
        """
        count = math.ceil(self.above / (self.theta * self.step)) + 1
        total = np.zeros(len(self.omega), dtype=np.complex128)
        for rate, sign in ((self.theta, 1.0), (self.theta + 1, -1.0)):
            log_z = -rate * self.step + 1j * self.omega
            total += sign * np.exp(log_z) * (1 - np.exp(count * log_z)) / (1 - np.exp(log_z))
        return np.asarray(total * self.double / self.length)


@dataclass
class Meter:
    """ε after any number of repetitions of one event, cheap enough to be asked after every step.

    >>> from sordino.events import Gaussian, Poisson
    >>> meter = Meter(Poisson(0.01, Gaussian(4.0)), 1e-5)
    >>> round(meter.epsilon(10_000), 3)
    0.947
    """

    event: Event
    delta: float

    def __post_init__(self) -> None:
        self.delta = validate.fraction("delta", self.delta)
        self._range = (0, -1)
        self._ready: list[_Direction] = []
        self._known: dict[int, float] = {}
        self._sampled: Sampled | None = None
        if is_private(self.event):
            phases = collect(self.event, relation_of(self.event), self.delta)
            if len(phases) == 1 and phases[0][1] == 1 and not (lone_gaussian(phases) and phases[0][0].rate == 1.0):
                self._sampled = phases[0][0]

    def epsilon(self, count: int) -> float:
        """An upper bound on ε after `count` repetitions."""
        count = validate.count("count", count, least=0)
        if count == 0:
            return 0.0
        if count not in self._known:
            self._known[count] = self._compute(count)
        return self._known[count]

    def _compute(self, count: int) -> float:
        if self._sampled is None or count < _FIRST:
            return PLD().epsilon(Repeat(self.event, count), self.delta)
        low, high = self._range
        if not low <= count <= high:
            low = 1 << (count.bit_length() - 1)
            self._range = (low, 2 * low)
            both = directions(((self._sampled, 1),))
            self._ready = [_Direction(self._sampled, add, low, 2 * low, self.delta) for add in both]
        return max(direction.epsilon(count, self.delta) for direction in self._ready)
