"""Where a composition has its δ: the saddle point, from the pairs' own grids. No bound; used to choose tilt and step.

Alghamdi et al. 2023. With K(θ) the cumulant of the loss under P and s = √K''(θ), at ε = K'(θ)

    δ(ε) ≈ e^{K(θ) − θε} · ½[erfcx(θs/√2) − erfcx((θ+1)s/√2)]

exact for the Gaussian mechanism. **Privacy:** none is claimed from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx

from sordino.accounting.lattice import Sampled
from sordino.accounting.pairs import Array

Phases = tuple[tuple[Sampled, int], ...]

_LOG_TILT = (-30.0, 30.0)
_HALVINGS = 44
_SPREADS = 200.0  # no tilt beyond this many inverse standard deviations


@dataclass(frozen=True)
class Saddle:
    """Tilt θ, the ε it belongs to, and log δ there."""

    theta: float
    epsilon: float
    log_delta: float


class Estimate:
    """K(θ), K'(θ), K''(θ) of a composition, approximately."""

    def __init__(self, phases: Phases, add: bool, cut: float) -> None:
        natives = [(sampled.native(add, cut), count) for sampled, count in phases]
        self.parts: list[tuple[Array, Array, int]] = [(n.loss, n.log_mass, count) for n, count in natives]
        self.std = math.sqrt(math.fsum(count * n.std**2 for n, count in natives))

    def derivatives(self, theta: float) -> tuple[float, float, float]:
        """K, K', K''."""
        value = mean = variance = 0.0
        for loss, log_mass, count in self.parts:
            exponent = log_mass + theta * loss
            top = float(exponent.max())
            weight = np.exp(exponent - top)
            total = float(weight.sum())
            centre = float(weight @ loss) / total
            value += count * (top + math.log(total))
            mean += count * centre
            variance += count * float(weight @ (loss - centre) ** 2) / total
        return value, mean, variance

    def saddle(self, theta: float) -> Saddle:
        """The approximation at a tilt."""
        value, mean, variance = self.derivatives(theta)
        s = math.sqrt(variance / 2)
        weight = 0.5 * float(erfcx(theta * s) - erfcx((theta + 1) * s))
        return Saddle(theta, mean, value - theta * mean + math.log(max(weight, 1e-300)))

    def _search(self, below: bool, goal: float) -> Saddle:
        low, high = _LOG_TILT[0], min(_LOG_TILT[1], math.log(_SPREADS / max(self.std, 1e-280)))
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            found = self.saddle(math.exp(middle))
            value = -found.log_delta if below else found.epsilon
            low, high = (middle, high) if value < goal else (low, middle)
            if high - low < 1e-3:
                break
        return self.saddle(math.exp(0.5 * (low + high)))

    def at_delta(self, delta: float) -> Saddle:
        """The saddle point whose δ is this."""
        return self._search(True, -math.log(delta))

    def at_epsilon(self, epsilon: float) -> Saddle:
        """The saddle point whose ε is this; the smallest tilt when ε lies below the mean loss."""
        return self._search(False, epsilon)

    def gentle(self, epsilon: float, log_delta: float, room: float) -> Saddle:
        """The smallest tilt at which sums around ε still have relative precision: K(θ) − θε ≤ log δ + room."""
        low, high = _LOG_TILT[0], math.log(self.at_epsilon(epsilon).theta)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            theta = math.exp(middle)
            near = self.derivatives(theta)[0] - theta * epsilon <= log_delta + room
            low, high = (low, middle) if near else (middle, high)
            if high - low < 1e-3:
                break
        theta = math.exp(high)
        return Saddle(theta, epsilon, log_delta)
