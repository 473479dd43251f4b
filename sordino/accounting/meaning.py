"""Privacy figures in words: how strong an ε is taken to be, and what the best attack can and cannot do.

Tiers: Ponomareva et al. 2023, *How to DP-fy ML*, §5.2. Attacks: Dong, Roth & Su 2019; for a fair coin between "in" and
"out", the best guess is right with probability (1 + δ(0)) / 2, since δ(0) is the total variation.

**Privacy:** every figure comes from an accountant's upper bounds and is rounded up: no attack does better.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino import validate
from sordino.accounting import PLD, Tradeoff, relation_of, tradeoff
from sordino.events import Event, Relation

STRONG, REASONABLE = 1.0, 10.0
"""Limits of the tiers."""

FALSE_ALARMS = (0.001, 0.01, 0.1)
"""False-positive rates at which an attack's hits are told."""


def tier(epsilon: float) -> str:
    """Returns the meaning of an ε in words: the tier in which the field reads it.

    >>> tier(0.9), tier(3)
    ('strong formal protection (ε ≤ 1)', 'reasonable protection (ε ≤ 10)')
    """
    if validate.number("epsilon", epsilon) < 0:
        raise ValueError(f"epsilon={epsilon}: must be >= 0")
    if epsilon <= STRONG:
        return "strong formal protection (ε ≤ 1)"
    if epsilon <= REASONABLE:
        return "reasonable protection (ε ≤ 10)"
    return "weak: little or no formal protection (ε > 10)"


def percent(share: float) -> str:
    """Returns a share as a percentage, for the meaning of an ε in words, rounded up: an attack's success must not be
    told smaller than it may be.

    >>> percent(0.50001), percent(0.0123), percent(1.0)
    ('50.1 %', '1.3 %', '100 %')
    """
    if validate.number("share", share) < 0:
        raise ValueError(f"share={share}: must be >= 0")
    if share >= 1:
        return "100 %"
    digits = 1 if share >= 0.001 else 3
    scale = 10.0**digits
    # The subtraction forgives the rounding of 100·share, which is not a whole number of tenths by an eps.
    return f"{min(100.0, math.ceil(100 * share * scale - 1e-9) / scale):.{digits}f} %"


@dataclass(frozen=True)
class Attack:
    """What no attacker exceeds, who sees the result and knows all other records."""

    coin: float
    """Share of right guesses whether a record was in, for a fair coin."""
    hits: tuple[tuple[float, float], ...]
    """(false-positive rate, largest true-positive rate)."""
    mu: float
    """The Gaussian-DP parameter; infinite when the curve has none."""
    relation: Relation = Relation.ADD_OR_REMOVE

    def __str__(self) -> str:
        asked = "which of two records was used" if self.relation is Relation.REPLACE else "whether one record was used"
        return (
            f"Someone who sees the trained model, knows every other record and guesses {asked} is right"
            f" at most {percent(self.coin)} of the time, where a coin is right 50 %."
        )


def attack(event: Event, curve: Tradeoff | None = None) -> Attack:
    """Returns what the ε of an event means for an attacker: the best attack on the event, by PLD.

    >>> from sordino.events import Gaussian
    >>> percent(attack(Gaussian(2.0)).coin)
    '59.9 %'
    """
    curve = tradeoff(event) if curve is None else curve
    coin = (1 + PLD().delta(event, 0.0)) / 2
    hits = tuple((alpha, float(curve.power(alpha))) for alpha in FALSE_ALARMS)
    return Attack(coin, hits, curve.mu, relation_of(event))
