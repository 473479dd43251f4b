"""A mixture: one of several events, drawn with public weights, of which everybody knows which one it was.

**Privacy:** given the choice, each part is dominated by its own pair, and the mixture of the pairs dominates the mixture.
The weight that is missing to 1 counts as a total loss of privacy.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino import validate
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.privacy_loss.pairs import MixturePair


@register_event
@dataclass(frozen=True)
class Mixture(Event):
    """One of `events`, drawn with public `weights` independently of the data; which one it was is known to all.

    With probability 1 − Σ weights something happens about which nothing is promised.

    Args:
        weights: public probabilities.
        events: one for each.

    Examples:
        >>> from sordino.events import Gaussian
        >>> Mixture((0.5, 0.5), (Gaussian(1.0), Gaussian(2.0)))
        Mixture(weights=(0.5, 0.5), events=(Gaussian(multiplier=1.0), Gaussian(multiplier=2.0)))

    """

    weights: tuple[float, ...]
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        """Validates the parts; refuses weights that do not belong to them or exceed one together."""
        # Lists become tuples, so that the event can be hashed.
        weights = validate.sequence("weights", self.weights, "a weight for each event")
        events = validate.sequence("events", self.events, "the events that are mixed")
        set_field(self, "weights", tuple(validate.non_negative("weights", weight) for weight in weights))
        set_field(self, "events", tuple(require_event(event) for event in events))
        if not self.events or len(self.weights) != len(self.events):
            raise ValueError(
                f"weights: {len(self.weights)} for {len(self.events)} events; need one for each, at least one"
            )
        # What is missing to 1 counts as a total loss of privacy; more than 1 is no distribution.
        if math.fsum(self.weights) > 1 + 1e-9:
            raise ValueError(f"weights: sum to {math.fsum(self.weights)}; must be <= 1")

    def dominating_pair(self, moves: int) -> MixturePair:
        """Returns the mixture of the pairs of the parts."""
        return MixturePair(self.weights, tuple(inner.dominating_pair(moves) for inner in self.events))

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the mean of the parts' bounds."""
        parts = zip(self.weights, self.events, strict=True)
        return math.fsum(weight * inner.noise_end(moves, delta, coordinates) for weight, inner in parts)
