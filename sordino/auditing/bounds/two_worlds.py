"""Lower bounds on ε and μ from the errors of a test between worlds with and without a canary.

    ε ≥ max(ln((1 − δ − FNR) / FPR), ln((1 − δ − FPR) / FNR))   Kairouz, Oh & Viswanath 2015
    μ ≥ Φ⁻¹(1 − FPR) − Φ⁻¹(FNR)                                 Nasr et al. 2023, if the mechanism is Gaussian
    μ ≥ the μ whose curve C_q(G_μ) passes through (FPR, FNR)    the same on Poisson draws of rate q

Each error rate gets half of the allowed chance. The rule that decides must not have seen the scores it is judged on.

Privacy: none. These are lower bounds: a small one proves nothing.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import ndtri

from sordino import validate
from sordino.accounting.tradeoff import subsampled_tradeoff
from sordino.auditing.bounds import binomial
from sordino.privacy_loss.gaussian import gaussian_epsilon

_BISECTIONS = 60
_MOST_MU = 1e3


@dataclass(frozen=True)
class Errors:
    """What a fixed rule got wrong: `missed` of `inside` worlds with the canary, `alarms` of `outside` worlds without."""

    missed: int
    inside: int
    alarms: int
    outside: int

    def upper_rates(self, error: float) -> tuple[float, float]:
        """Returns upper bounds on (FNR, FPR); one of them is wrong with probability `error` at most."""
        missed = binomial.upper_bound(self.missed, self.inside, error / 2)
        return missed, binomial.upper_bound(self.alarms, self.outside, error / 2)


def epsilon_lower_bound(errors: Errors, delta: float, error: float = 0.05) -> float:
    """Returns a lower bound on ε at δ from the errors of a test between two worlds, with and without a canary; it is
    wrong with probability `error`.

    >>> round(epsilon_lower_bound(Errors(0, 1000, 0, 1000), 0.0), 2)  # about ln(1000 / ln(2 / 0.05)): no more can be shown
    5.6
    >>> epsilon_lower_bound(Errors(500, 1000, 500, 1000), 0.0)
    0.0
    """
    # Both error rates are replaced by upper confidence limits that hold together with probability 1 − error.
    missed, alarms = errors.upper_rates(error)
    bound = 0.0
    # (ε, δ)-DP means 1 − δ − missed ≤ e^ε · alarms, and the same with both exchanged.
    for one, other in ((missed, alarms), (alarms, missed)):
        if 1 - delta - one > 0:
            bound = max(bound, math.log((1 - delta - one) / other))
    return bound


def mu_lower_bound(errors: Errors, error: float = 0.05, rate: float = 1.0) -> float:
    """Returns a lower bound on μ from the errors of a test between two worlds, if each world was one Gaussian release
    on a Poisson draw at `rate`.

    >>> round(mu_lower_bound(Errors(159, 1000, 159, 1000)), 2)
    1.81
    """
    missed, alarms = errors.upper_rates(error)
    if missed + alarms >= 1:
        return 0.0
    if validate.rate("rate", rate) == 1.0:
        return max(0.0, float(ndtri(1 - alarms) - ndtri(missed)))
    # Double until the curve passes below the observed point, then bisect.
    low, high = 0.0, 1.0
    while subsampled_tradeoff(high, rate, alarms) > missed and high < _MOST_MU:
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if subsampled_tradeoff(middle, rate, alarms) > missed else (low, middle)
    return low


def gaussian_epsilon_lower_bound(errors: Errors, delta: float, error: float = 0.05) -> float:
    """Returns a lower bound on ε at δ if the mechanism is Gaussian."""
    return gaussian_epsilon(mu_lower_bound(errors, error), delta)
