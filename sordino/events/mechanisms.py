"""Releases on all the data they are given: noise added to a sum, a choice, an answer; or nothing that has a proof."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino import validate
from sordino.events.base import Event, checked, checked_noise, set_field


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise of standard deviation multiplier × (one record's L2 contribution).

    Args:
        multiplier: σ.

    Examples:
        >>> from sordino.accounting import PLD
        >>> round(PLD().epsilon(Gaussian(5.0), delta=1e-5), 3)
        0.726

    """

    multiplier: float

    def __post_init__(self) -> None:
        set_field(self, "multiplier", checked_noise("multiplier", self.multiplier))


@dataclass(frozen=True)
class Laplace(Event):
    """Laplace noise of scale `scale` × (one record's L1 contribution): (1/scale)-DP.

    Args:
        scale: of the noise.

    Examples:
        >>> from sordino.accounting import PLD
        >>> round(PLD().epsilon(Laplace(2.0), delta=1e-9), 3)
        0.5

    """

    scale: float

    def __post_init__(self) -> None:
        set_field(self, "scale", checked_noise("scale", self.scale))


@dataclass(frozen=True)
class Exponential(Event):
    """One choice by the exponential mechanism: epsilon-DP.

    Args:
        epsilon: of the choice.

    Examples:
        >>> Exponential(0.1)
        Exponential(epsilon=0.1)

    """

    epsilon: float

    def __post_init__(self) -> None:
        set_field(self, "epsilon", validate.positive("epsilon", self.epsilon))


@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """Discrete Gaussian noise of parameter `multiplier` on an integer to which one record contributes at most 1.

    Args:
        multiplier: σ of the discrete Gaussian.

    Examples:
        >>> DiscreteGaussian(10.0)
        DiscreteGaussian(multiplier=10.0)

    """

    multiplier: float

    def __post_init__(self) -> None:
        set_field(self, "multiplier", checked_noise("multiplier", self.multiplier))


@dataclass(frozen=True)
class RandomisedResponse(Event):
    """One answer among `buckets`: with probability `flip` a uniform one, otherwise the true one.

    An absent record answers like some fixed bucket, so the relation makes no difference.

    Args:
        flip: probability of a uniform answer.
        buckets: k.

    Examples:
        >>> RandomisedResponse(flip=0.5)
        RandomisedResponse(flip=0.5, buckets=2)

    """

    flip: float
    buckets: int = 2

    def __post_init__(self) -> None:
        set_field(self, "flip", validate.rate("flip", self.flip))
        set_field(self, "buckets", validate.count("buckets", self.buckets, least=2))


@dataclass(frozen=True)
class Mixture(Event):
    """One of `events`, drawn with public `weights` independently of the data; which one it was is known to all.

    With probability 1 − Σ weights something happens about which nothing is promised.

    Args:
        weights: public probabilities.
        events: one for each.

    Examples:
        >>> Mixture((0.5, 0.5), (Gaussian(1.0), Gaussian(2.0)))
        Mixture(weights=(0.5, 0.5), events=(Gaussian(multiplier=1.0), Gaussian(multiplier=2.0)))

    """

    weights: tuple[float, ...]
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        set_field(self, "weights", tuple(validate.non_negative("weights", weight) for weight in self.weights))
        set_field(self, "events", tuple(checked(event) for event in self.events))
        if not self.events or len(self.weights) != len(self.events):
            raise ValueError(
                f"weights: {len(self.weights)} for {len(self.events)} events; need one for each, at least one"
            )
        if math.fsum(self.weights) > 1 + 1e-9:
            raise ValueError(f"weights: sum to {math.fsum(self.weights)}; must be <= 1")


@dataclass(frozen=True)
class ProjectedClip(Event):
    """A Gaussian release at `multiplier` whose records were clipped by norms estimated from random directions.

    One record contributes up to ρ = √(r/χ²_r) times its share, r = `projections`, and the directions are known to all.

    Args:
        multiplier: σ.
        projections: r.

    Examples:
        >>> ProjectedClip(1.1, projections=8)
        ProjectedClip(multiplier=1.1, projections=8)

    """

    multiplier: float
    projections: int

    def __post_init__(self) -> None:
        set_field(self, "multiplier", checked_noise("multiplier", self.multiplier))
        set_field(self, "projections", validate.count("projections", self.projections))


@dataclass(frozen=True)
class NonPrivate(Event):
    """Something that no theorem covers, and why, in a sentence a reader understands without the code.

    Args:
        reason: printed as the reason of a `NoGuarantee`.

    Examples:
        >>> NonPrivate("the largest loss was printed").reason
        'the largest loss was printed'

    """

    reason: str

    def __post_init__(self) -> None:
        if not isinstance(self.reason, str):
            raise TypeError(f"reason={self.reason!r}: must be a sentence, not {type(self.reason).__name__}")
        if not self.reason:
            raise ValueError("reason='': say why there is no guarantee")
