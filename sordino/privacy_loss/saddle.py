"""The saddle-point approximation of δ: it chooses tilt and step, and is never used as a bound.

Alghamdi et al. 2023. With K(θ) the cumulant of the loss under P and s = √K''(θ), at ε = K'(θ)

    δ(ε) ≈ e^{K(θ) − θε} · ½[erfcx(θs/√2) − erfcx((θ+1)s/√2)]

exact for the Gaussian mechanism. Where single large losses (jumps) contribute, δ(ε) ≈ bulk + Σ T·p(jump)·δ_bulk(ε −
jump).

**Privacy:** none is claimed from it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import erfcx, ndtr

from sordino.privacy_loss.lattice import LEAST_SPREAD, Sampled
from sordino.privacy_loss.pairs import Array

Phases = tuple[tuple[Sampled, int], ...]

_HALVINGS = 60
_SPREADS = 0.2, 60.0  # tilts in inverse standard deviations
_RARE = 200.0  # jumps happen with at most this many times δ
_MOST_JUMPS = 0.05  # and with at most this probability
_EXPECTED = 0.02  # tilted number of jumps from which on they are composed apart


@dataclass(frozen=True)
class Saddle:
    """Tilt θ, the ε it belongs to, log δ there; the loss beyond which jumps begin, and the tilt for them."""

    theta: float
    epsilon: float
    log_delta: float
    limit: float = math.inf
    jump_theta: float = 0.0
    slope: float = 0.0  # −d log δ/dε, when it is not θ


class Estimate:
    """K(θ), K'(θ), K''(θ) of a composition, approximately; of its bulk only when a limit is given."""

    def __init__(self, phases: Phases, add: bool, cut: float, limit: float = math.inf) -> None:
        self.parts: list[tuple[Array, Array, int]] = []
        self.jumps: list[tuple[Array, Array, int]] = []
        variance = 0.0
        # Losses up to the limit form the bulk; larger ones are jumps, which are rare and handled one by one.
        for sampled, count in phases:
            native = sampled.native_losses(add, cut)
            bulk = native.loss <= limit
            if bulk.all():
                self.parts.append((native.loss, native.log_mass, count))
                variance += count * native.std**2
                continue
            # At least one loss stays in the bulk, or there would be nothing to expand around.
            if not bulk.any():
                bulk[int(np.argmin(native.loss))] = True
            self.parts.append((native.loss[bulk], native.log_mass[bulk], count))
            self.jumps.append((native.loss[~bulk], np.exp(native.log_mass[~bulk]), count))
            mass = np.exp(native.log_mass[bulk])
            mean = float(mass @ native.loss[bulk]) / float(mass.sum())
            variance += count * max(float(mass @ (native.loss[bulk] - mean) ** 2), (LEAST_SPREAD * mean) ** 2)
        self.limit = limit
        self.std = math.sqrt(max(variance, 1e-280))
        _, self.mean, spread = self.derivatives(0.0)
        self.spread = max(math.sqrt(max(spread, 1e-300)), LEAST_SPREAD * abs(self.mean))

    def derivatives(self, theta: float) -> tuple[float, float, float]:
        """Returns the cumulant K, K' and K'' at a tilt, from which a saddle point follows."""
        value = mean = variance = 0.0
        # Moments of the tilted law, with the maximum taken out of the exponent so that nothing overflows.
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

    def cumulant_shares(self, theta: float) -> list[float]:
        """Returns what every part adds to the cumulant K(θ) of a saddle-point estimate."""
        result = []
        for loss, log_mass, count in self.parts:
            exponent = log_mass + theta * loss
            top = float(exponent.max())
            result.append(count * (top + math.log(float(np.exp(exponent - top).sum()))))
        return result

    def saddle(self, theta: float) -> Saddle:
        """Returns the saddle-point approximation of ε and δ at a tilt."""
        value, mean, variance = self.derivatives(theta)
        s = math.sqrt(variance / 2)
        weight = 0.5 * float(erfcx(theta * s) - erfcx((theta + 1) * s))
        return Saddle(theta, mean, value - theta * mean + math.log(max(weight, 1e-300)), self.limit)

    def _find_saddle(self, below: bool, goal: float) -> Saddle:
        """Returns the saddle point at which −log δ (`below`) or ε reaches a goal, by bisection over log θ."""
        # The search runs from a tilt that hardly tilts to one far out in the tail.
        reach = max(float(loss.max()) for loss, _, _ in self.parts)
        low = math.log(min(_SPREADS[0] / self.std, 0.5 / max(reach, 1e-280)))
        high = math.log(_SPREADS[1] / self.std)
        for _ in range(_HALVINGS):
            middle = 0.5 * (low + high)
            found = self.saddle(math.exp(middle))
            value = -found.log_delta if below else found.epsilon
            low, high = (middle, high) if value < goal else (low, middle)
            if high - low < 1e-3:
                break
        return self.saddle(math.exp(0.5 * (low + high)))

    def at_delta(self, delta: float) -> Saddle:
        """Returns the saddle point whose δ is this."""
        return self._find_saddle(True, -math.log(delta))

    def at_epsilon(self, epsilon: float) -> Saddle:
        """Returns the saddle point whose ε is this; the smallest tilt when ε lies below the mean loss."""
        return self._find_saddle(False, epsilon)

    def expected_jumps(self, theta: float, limit: float) -> float:
        """Returns the number of losses beyond the limit (jumps) that a saddle-point estimate expects in the tilted
        composition.
        """
        total = 0.0
        for loss, log_mass, count in self.parts:
            exponent = log_mass + theta * loss
            weight = np.exp(exponent - exponent.max())
            total += count * float(weight[loss > limit].sum() / weight.sum())
        return total

    def jump_delta(self, epsilon: float) -> float:
        """Returns what outcomes with one jump contribute to the saddle-point approximation of δ at ε, the bulk taken as
        Gaussian.
        """
        total = 0.0
        for loss, mass, count in self.jumps:
            need = (self.mean + loss - epsilon) / self.spread
            drop = np.exp(np.clip(-need * self.spread + self.spread**2 / 2, -700.0, 700.0))
            total += count * float(mass @ np.clip(ndtr(need) - drop * ndtr(need - self.spread), 0.0, 1.0))
        return total

    def total_delta(self, epsilon: float) -> float:
        """Returns the saddle-point approximation of δ at ε, of bulk and jumps together."""
        found = self.at_epsilon(epsilon)
        share = math.exp(min(found.log_delta, 0.0)) if found.epsilon > 0.5 * epsilon else 0.0
        return share + self.jump_delta(epsilon)

    def jump_tilt(self) -> float:
        """Returns a slight tilt for outcomes with a jump: their heavy tails would become dominant with a stronger one."""
        return 2 / max(max((float(loss.max()) for loss, _, _ in self.jumps), default=1.0), self.spread)


def jump_limit(phases: Phases, add: bool, cut: float, delta: float) -> float:
    """Returns the loss beyond which all releases together go with probability 200·δ at most."""
    steps = sum(count for _, count in phases)
    return max(sampled.native_losses(add, cut).quantile(min(_RARE * delta, 0.3) / steps) for sampled, _ in phases)


def has_heavy_jumps(phases: Phases, add: bool, cut: float, delta: float, whole: Estimate, theta: float) -> bool:
    """Returns whether, by the saddle-point approximation, rare jumps make up a part of the tilted composition, so that
    composing them apart may pay.
    """
    if _RARE * delta > _MOST_JUMPS:
        return False
    return whole.expected_jumps(theta, jump_limit(phases, add, cut, delta)) >= _EXPECTED


def locate_with_jumps(phases: Phases, add: bool, cut: float, delta: float) -> tuple[Estimate, Saddle] | None:
    """Returns the saddle-point estimate and the saddle point for δ, with jumps apart; None when there are no jumps."""
    bulk = Estimate(phases, add, cut, jump_limit(phases, add, cut, delta))
    if not bulk.jumps:
        return None
    low, high = 0.0, max(bulk.at_delta(delta).epsilon, 0.0) + max(float(loss.max()) for loss, _, _ in bulk.jumps) * 4
    for _ in range(_HALVINGS):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if bulk.total_delta(middle) > delta else (low, middle)
        if high - low < 1e-3 * high:
            break
    return bulk, saddle_near(bulk, 0.5 * (low + high), delta)


def saddle_near(estimate: Estimate, epsilon: float, delta: float) -> Saddle:
    """Returns the saddle point, that is the tilts to use, when ε is known roughly."""
    bulk = estimate.at_epsilon(epsilon)
    if estimate.limit == math.inf:
        return Saddle(bulk.theta, epsilon, math.log(delta))
    # the bulk need not be tilted further than to its own δ
    own = estimate.at_delta(delta)
    theta = min(bulk.theta, own.theta * 1.5)
    width = max(0.02 * epsilon, 0.1 * estimate.spread)
    here, there = estimate.total_delta(epsilon), estimate.total_delta(epsilon + width)
    slope = math.log(here / there) / width if 0 < there < here else theta
    return Saddle(theta, epsilon, math.log(delta), estimate.limit, min(estimate.jump_tilt(), theta), min(slope, theta))
