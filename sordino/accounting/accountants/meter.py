"""Live ε during training: the same certified bound as PLD, prepared once per doubling of the steps.

The transform of one release is kept; for t releases only the few frequencies that matter are raised to the power t, and
δ(ε) is summed in the frequency domain: Σ_j w_j p_j = (1/n) Σ_k F_k^t Σ_j w_j e^{iω_k j}, the inner sum being geometric.

**Privacy:** the same lattice, window and charges as in `tilted_windows`; ε is rounded up to the next lattice point.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.fft import next_fast_len

from sordino import validate
from sordino.accounting.accountants.pld import PLD, TOLERANCE
from sordino.accounting.accountants.search_bounds import has_search
from sordino.accounting.phases import collect_phases, relation_of
from sordino.events import Event, Repeat, is_private
from sordino.privacy_loss.certified_bounds import CUT, SENSELESS, directions
from sordino.privacy_loss.closed_forms import find_lone_gaussian, one_release_epsilon
from sordino.privacy_loss.composed_bounds import choose_setting, round_up_phases
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.saddle import Estimate
from sordino.privacy_loss.soundness import require_at_most, require_finite
from sordino.privacy_loss.spectra import EPS, SILENT, transform
from sordino.privacy_loss.tail_sums import efolds_above_centre, weight_sum
from sordino.privacy_loss.tilted_windows import LONGEST, Cumulant, Weighted, find_window

_NOTHING = 1e-300  # stands for a frequency that is zero
_SHORT = 1 << 17  # points of a transform for an ε that protects nobody
_WIDENINGS = 24  # times the step of the lattice is doubled before a direction is given up
_FIRST = 16  # releases from which on the transform is kept


class _PreparedDirection:
    """One direction, prepared for t releases with low ≤ t ≤ high."""

    def __init__(self, sampled: Sampled, add: bool, low: int, high: int, delta: float) -> None:
        # Choose lattice and tilt for the largest count; a step is doubled until the window for all counts is short enough.
        phases = ((sampled, high),)
        cut = CUT * delta / high
        estimate = Estimate(phases, add, cut)
        saddle = estimate.at_delta(delta)
        setting = choose_setting(phases, add, saddle, estimate.std, cut, TOLERANCE)
        longest = LONGEST if saddle.epsilon < SENSELESS else _SHORT
        mesh = setting.mesh
        self.given_up = False
        for attempt in range(_WIDENINGS + 1):
            parts, _ = round_up_phases(phases, add, mesh)
            step, theta = mesh.step, setting.tilt(mesh.step)
            frames = [
                find_window(
                    Cumulant([Weighted(parts[0].index, parts[0].log_mass, t)], step), theta, step, setting.outside
                )
                for t in (low, high)
            ]
            first = min(frame[0] for frame in frames)
            self.length = next_fast_len(max(sum(frame) for frame in frames) - first, real=True)
            if self.length <= longest:
                break
            if attempt == _WIDENINGS:
                # so many losses so large have no lattice that is short enough; PLD has other means
                self.given_up = True
                return
            mesh = replace(mesh, step=2 * step)
        # Keep the transform of one release, at the frequencies that matter for the smallest count.
        self.last = first + self.length - 1
        self.first, self.step, self.theta, self.outside = first, step, theta, setting.outside
        ((self.log_mass, _),) = Cumulant(parts, step).log_mass(theta)
        spectrum, self.rounding = transform(parts[0], theta, step, self.log_mass, self.length)
        size = np.abs(spectrum) + self.rounding
        self.active = np.flatnonzero(size > math.exp(math.log(SILENT) / low))
        self.log_spectrum = np.log(np.where(spectrum[self.active] == 0, _NOTHING, spectrum[self.active]))
        self.log_size = np.log(size[self.active])
        self.relative = self.rounding / size[self.active]
        self.omega = 2 * math.pi * self.active / self.length
        # frequencies between 0 and n/2 stand for two
        self.double = np.where((self.active == 0) | (2 * self.active == self.length), 1.0, 2.0)
        self.above = efolds_above_centre(theta)
        self.kernel = self._kernel()
        self.infinite = sampled.round_up(mesh, add).infinite
        self.guess = round(setting.centre / step)

    def epsilon(self, count: int, delta: float) -> float:
        """Returns the meter's ε after `count` releases in one direction, rounded up to the lattice; infinite where
        there is no lattice.
        """
        if self.given_up:
            return math.inf
        # The transform of `count` releases, and what is lost for certain.
        product = np.exp(count * self.log_spectrum) * self.kernel
        lost = -math.expm1(count * math.log1p(-min(self.infinite, 1 - 1e-16)))
        if delta <= lost:
            return math.inf
        # as in `spectra`: n·g^{n−1}·e at every frequency, twice for the sum in place of a transform
        off = np.exp(count * self.log_size) * (count * self.relative + EPS * (math.log2(self.length) + 8))
        error = 2 * float((off * self.double).sum()) / self.length + SILENT
        slack = error * weight_sum(self.theta, self.step) + 2 * self.outside / (1 + self.theta) + math.exp(-self.above)

        def exceeds(j: int) -> bool:
            # scaled by the tilt at j: δ(l_j)·e^{θ l_j − K}
            """Returns whether δ at lattice point j, as the meter computes it from the kept transform, is above the δ
            that is asked for.
            """
            value = require_finite("δ", float((product * np.exp(1j * self.omega * j)).real.sum()) + slack)
            return value > 0 and math.log(value) + count * self.log_mass - self.theta * j * self.step > math.log(
                delta - lost
            )

        # Look for the smallest lattice point at which δ is met, from the last answer on: strides that grow, then bisection.
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
        """Returns the kernel by which a meter reads δ off its transform, Σ_{m≥1} e^{iωm} e^{−θhm}(1 − e^{−hm}), cut
        where the weights are below e^{−above}.

        Sums that reach beyond the window wrap round and count mass from its bottom: more, never less.
        """
        count = math.ceil(self.above / (self.theta * self.step)) + 1
        total = np.zeros(len(self.omega), dtype=np.complex128)
        for rate, sign in ((self.theta, 1.0), (self.theta + 1, -1.0)):
            log_z = -rate * self.step + 1j * self.omega
            # the quotient of two differences that are both lost to rounding when the tilt is far below one step
            total += sign * np.exp(log_z) * np.expm1(count * log_z) / np.expm1(log_z)
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
        """Finds out whether the event is one sampled release, of which the transform can be kept."""
        self.delta = validate.fraction("delta", self.delta)
        self._range = (0, -1)
        self._ready: list[_PreparedDirection] = []
        self._known: dict[int, float] = {}
        self._sampled: Sampled | None = None
        self._alone = 0.0  # ε of a single release, where it is known in closed form
        # A search of runs is accounted by other theorems than composition, so no transform can be kept for it.
        if is_private(self.event) and not has_search(self.event):
            phases = collect_phases(self.event, relation_of(self.event), self.delta)
            # One sampled release, many times: its transform can be raised to any count. Plain Gaussians have a closed
            # form, which is faster still.
            if len(phases) == 1 and phases[0][1] == 1 and not (find_lone_gaussian(phases) and phases[0][0].rate == 1.0):
                self._sampled = phases[0][0]
                self._alone = one_release_epsilon(self._sampled, self.delta) if find_lone_gaussian(phases) else 0.0

    def epsilon(self, count: int) -> float:
        """Returns the meter's upper bound on ε after `count` repetitions of its event."""
        count = validate.count("count", count, least=0)
        if count == 0:
            return 0.0
        if count not in self._known:
            self._known[count] = self._compute_epsilon(count)
        return self._known[count]

    def _compute_epsilon(self, count: int) -> float:
        """Returns ε from the transform that the meter keeps for a range of counts, or from PLD where there is none."""
        # Few steps are cheap to account anew; the transform pays from some steps on.
        if self._sampled is None or count < _FIRST:
            return PLD().epsilon(Repeat(self.event, count), self.delta)
        low, high = self._range
        # The window of a transform must hold the losses of every count that it is used for. A range that doubles is
        # prepared rarely: as often as the logarithm of the steps.
        if not low <= count <= high:
            low = 1 << (count.bit_length() - 1)
            self._range = (low, 2 * low)
            both = directions(((self._sampled, 1),))
            self._ready = [_PreparedDirection(self._sampled, add, low, 2 * low, self.delta) for add in both]
        epsilon_found = max(direction.epsilon(count, self.delta) for direction in self._ready)
        # A δ below what the prepared window resolves is left to the full accountant.
        if math.isinf(epsilon_found):
            epsilon_found = PLD().epsilon(Repeat(self.event, count), self.delta)
        # Composition cannot cost less than one of its parts; anything else would be a defect of the numbers.
        require_at_most(self._alone, epsilon_found, "one release of an event, and many")
        return epsilon_found
