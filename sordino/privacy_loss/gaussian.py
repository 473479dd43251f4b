"""The Gaussian mechanism in closed form: δ(ε), ε(δ), and the two calibrations of its noise.

Balle & Wang 2018 (analytic), Dwork & Roth 2014 appendix A (classical). With μ = sensitivity/σ

    δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ)

**Privacy:** this is the exact hockey-stick divergence of N(μ, 1) and N(0, 1); k Gaussian releases compose to one with
μ² = Σ μᵢ² (Dong, Roth & Su 2019). Roots are returned from the safe side.
"""

from __future__ import annotations

import math

from scipy.special import erfcx, log_ndtr

from sordino import validate

_HALF_PI_ROOT = math.sqrt(math.pi / 2)
_SQRT2 = math.sqrt(2.0)
_LOG_ROOT_2PI = 0.5 * math.log(2 * math.pi)
_BISECTIONS = 120
LARGEST_MU = 1e150
"""Beyond it ε, which is about μ²/2, is no float any more."""


def _mills(x: float) -> float:
    """Returns the Mills ratio Φ(−x)/φ(x), for x ≥ 0."""
    return _HALF_PI_ROOT * float(erfcx(x / _SQRT2))


def gaussian_delta(mu: float, epsilon: float) -> float:
    """Returns δ at ε of the Gaussian mechanism with parameter μ ≥ 0, to full relative precision.

    The hockey-stick divergence is defined for every finite ε, negative ones included.

    >>> round(gaussian_delta(1.0, 1.0), 6)
    0.126937
    """
    epsilon = validate.number("epsilon", epsilon)
    if math.isinf(epsilon):
        raise ValueError(f"epsilon={epsilon}: must be finite")
    return _delta(validate.non_negative("mu", mu), epsilon)


def _delta(mu: float, epsilon: float) -> float:
    """Returns δ at ε of the Gaussian mechanism with parameter μ, for numbers that are known to be in range."""
    if mu == 0:
        return 0.0 if epsilon >= 0 else -math.expm1(epsilon)
    low, high = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if low >= 0:
        # φ(low)·(m(low) − m(high)), because e^ε φ(high) = φ(low)
        log_density = -0.5 * low * low - _LOG_ROOT_2PI
        return math.exp(log_density) * max(0.0, _mills(low) - _mills(high)) if log_density > -745 else 0.0
    first, second = float(log_ndtr(-low)), epsilon + float(log_ndtr(-high))
    # so little noise that both exponents are infinite: the outputs are told apart with certainty
    return math.exp(first) * -math.expm1(min(0.0, second - first)) if second > -math.inf else math.exp(first)


def gaussian_epsilon(mu: float, delta: float) -> float:
    """Returns the smallest ε ≥ 0 at which the Gaussian mechanism has δ(ε) ≤ delta, rounded up, for μ ≥ 0 and delta in
    [0, 1].

    >>> round(gaussian_epsilon(1.0, 1e-5), 4)
    4.3772
    """
    mu, delta = validate.non_negative("mu", mu), validate.probability("delta", delta)
    # Trivial ends first: δ(0) may be small enough, and δ = 0 has no finite ε for a Gaussian.
    if delta >= 1 or _delta(mu, 0.0) <= delta:
        return 0.0
    if delta <= 0 or mu > LARGEST_MU:
        return math.inf
    # Double until the target is met, then bisect. The upper end is returned, so ε is rounded up.
    low, high = 0.0, max(mu, 1e-300)
    while _delta(mu, high) > delta:
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if _delta(mu, middle) > delta else (low, middle)
    return high


def gaussian_mu(epsilon: float, delta: float) -> float:
    """Returns the largest μ at which the Gaussian mechanism has δ(ε) of at most delta, rounded down.

    Args:
        epsilon: to be met, at least 0.
        delta: at this δ, strictly between 0 and 1.

    Returns:
        μ; the noise multiplier is 1/μ.

    Examples:
        >>> round(gaussian_mu(1.0, 1e-5), 4)
        0.2681

    """
    epsilon, delta = validate.non_negative("epsilon", epsilon), validate.fraction("delta", delta)
    low, high = 0.0, 1.0
    while _delta(high, epsilon) <= delta:
        low, high = high, 2 * high
    for _ in range(_BISECTIONS):
        middle = 0.5 * (low + high)
        if not low < middle < high:
            break
        low, high = (middle, high) if _delta(middle, epsilon) <= delta else (low, middle)
    return low


def analytic_gaussian(epsilon: float, delta: float, sensitivity: float = 1) -> float:
    """Returns the smallest noise std that makes the Gaussian mechanism (epsilon, delta)-DP; valid for every epsilon >
    0.

    >>> round(analytic_gaussian(1.0, 1e-5), 4)
    3.7306
    """
    epsilon = validate.positive("epsilon", epsilon)
    delta = validate.fraction("delta", delta)
    # a few roundings to the safe side, for σ is the reciprocal of what was solved for
    return validate.positive("sensitivity", sensitivity) / gaussian_mu(epsilon, delta) * (1 + 1e-13)


def classical_gaussian(epsilon: float, delta: float, sensitivity: float = 1, *, outside_proof: bool = False) -> float:
    """Returns the classical noise std of the Gaussian mechanism, σ = Δ √(2 ln(1.25/δ)) / ε, which is proved for ε ≤ 1
    only; larger ε are refused.

    At ε = 10 the noise it prescribes has 2.27 times the nominal δ. `outside_proof=True` evaluates the formula all the
    same, for a comparison; the result is then no guarantee.

    >>> round(classical_gaussian(1.0, 1e-5), 4)
    4.8448
    """
    epsilon = validate.positive("epsilon", epsilon)
    delta = validate.fraction("delta", delta)
    if epsilon > 1 and not outside_proof:
        raise ValueError(f"epsilon={epsilon}: the classical formula is proved for epsilon <= 1; use analytic_gaussian")
    return validate.positive("sensitivity", sensitivity) * math.sqrt(2 * math.log(1.25 / delta)) / epsilon
