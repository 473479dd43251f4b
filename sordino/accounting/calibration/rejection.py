"""The price of drawing batches again until one scores well: a private form of sorting.

Pflaeging (2023, *Varianten von DPSGD*, §4.5) sketches it: draw a Poisson batch, score it by the median of its gradient
lengths, take it if the score is at least a quantile of all lengths, otherwise draw again (Liu & Talwar 2019, Algorithm 1,
known threshold). What may be drawn again must itself be private, score included: a pair (noisy gradient, noisy score),
(ε₁, δ₁)-DP.

    one step      (2ε₁ + ε₀, 3 e^{2ε₁+ε₀} δ₁/γ),   γ the chance to give up after a try       theorem 3.1
    tries         1 / P(median of a random batch ≥ the quantile), at most 1/γ
    best of K     K pairs are released, whichever is used: K times the steps at σ' = (σ⁻² + σ_s⁻²)^-½

**Privacy:** these are costs, and no sampler here uses them: they are what the sketch would have to pay. Threshold sampling
(`sordino.Threshold`) buys the same preference for long gradients for a small multiple of the rate.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import betainc

from sordino import validate
from sordino.accounting.accountants.pld import PLD
from sordino.accounting.theorems import advanced_kov
from sordino.events import Event, Gaussian, Poisson, Repeat


def chance_of_acceptance(batch: int, quantile: float) -> float:
    """Returns the chance that rejection sampling accepts a random batch: that at least half of it lies at or above the
    quantile. Batches are taken to be far smaller than the data.

    >>> f"{chance_of_acceptance(250, 0.75):.1e}"
    '1.8e-17'
    """
    batch = validate.count("batch", batch)
    above = 1 - validate.fraction("quantile", quantile)
    half = math.ceil(batch / 2)
    return float(betainc(half, batch - half + 1, above))  # P(Bin(batch, above) ≥ half)


def repeat_until_threshold(epsilon: float, delta: float, give_up: float, slack: float) -> tuple[float, float]:
    """Returns (ε, δ) of rejecting (ε₁, δ₁)-DP pairs of gradient and score, and drawing again, until a score reaches a
    known threshold; `slack` is ε₀.

    >>> repeat_until_threshold(0.5, 0.0, give_up=0.01, slack=0.0)
    (1.0, 0.0)
    """
    epsilon, slack = validate.non_negative("epsilon", epsilon), validate.non_negative("slack", slack)
    delta, give_up = validate.probability("delta", delta), validate.fraction("give_up", give_up)
    total = 2 * epsilon + slack
    if delta == 0:
        return total, 0.0
    log_delta = math.log(3) + total + math.log(delta) - math.log(give_up)
    return total, 3 * math.exp(total) * delta / give_up if log_delta < 0 else 1.0


@dataclass(frozen=True)
class Rejection:
    """What T steps of rejection would cost.

    Args:
        tries: expected, a step, without giving up.
        epsilon_of_a_try: of one.
        epsilon_of_a_step: of all tries of a step.
        epsilon: of all steps, by advanced composition.
        delta: at this δ.

    Examples:
        >>> Rejection(tries=10.0, epsilon_of_a_try=0.1, epsilon_of_a_step=0.2, epsilon=3.0, delta=1e-5).epsilon
        3.0

    """

    tries: float  # expected, a step, without giving up
    epsilon_of_a_try: float
    epsilon_of_a_step: float
    epsilon: float  # of all steps, by advanced composition
    delta: float

    def __post_init__(self) -> None:
        validate.positive("tries", self.tries, infinite=True)
        for name in ("epsilon_of_a_try", "epsilon_of_a_step", "epsilon"):
            validate.non_negative(name, getattr(self, name))
        validate.fraction("delta", self.delta)


def rejection(
    rate: float,
    multiplier: float,
    steps: int,
    batch: int,
    quantile: float,
    *,
    delta: float,
    delta_of_a_try: float,
    give_up: float,
    slack: float,
) -> Rejection:
    """Returns the price of rejecting batches until one scores well, with the score taken to be free: a lower estimate
    of what it would cost.

    A chance to give up that is much larger than the chance of acceptance means that nothing is ever accepted; a smaller
    one multiplies delta_of_a_try.

    >>> price = rejection(1 / 240, 1.1, 7200, 250, 0.75, delta=1e-5, delta_of_a_try=1e-11, give_up=0.5, slack=0.02)
    >>> f"{price.tries:.0e} tries a step, ε = {price.epsilon:.0f}"
    '6e+16 tries a step, ε = 6240'
    """
    steps, delta = validate.count("steps", steps), validate.fraction("delta", delta)
    # One try is one sampled Gaussian step, and its score is taken to cost nothing, which only makes the price too low.
    one = PLD().epsilon(Poisson(rate, Gaussian(multiplier)), delta_of_a_try)
    # A step tries until the score is good enough; its δ adds up over all steps and must leave something for their
    # composition.
    step, step_delta = repeat_until_threshold(one, delta_of_a_try, give_up, slack)
    left = delta - steps * step_delta
    if left <= 0:
        raise ValueError(
            f"delta_of_a_try={delta_of_a_try:g}: {steps} steps of it use up delta={delta:g}; give a smaller one"
        )
    epsilon, _ = advanced_kov(step, step_delta, steps, left)
    return Rejection(1 / chance_of_acceptance(batch, quantile), one, step, epsilon, delta)


def best_of(batches: int, rate: float, multiplier: float, score_multiplier: float, steps: int) -> Event:
    """Returns the event of releasing K batches in each step and rejecting all but the best, by a noisy score that one
    record moves by 1.

    All K pairs are charged: which one won was decided by what was released. "K − 1 scores and one pair" is no valid count.

    >>> from sordino.accounting import PLD
    >>> [round(PLD().epsilon(best_of(k, 1 / 240, 1.1, 5.0, 7200), 1e-5), 2) for k in (1, 2)]
    [1.68, 2.45]
    """
    multiplier = validate.positive("multiplier", multiplier)
    score_multiplier = validate.positive("score_multiplier", score_multiplier)
    # σ' = (σ⁻² + σ_s⁻²)^-½ in a form that neither overflows nor underflows
    together = multiplier * score_multiplier / math.hypot(multiplier, score_multiplier)
    return Repeat(
        Poisson(rate, Gaussian(together)), validate.count("steps", steps) * validate.count("batches", batches)
    )
