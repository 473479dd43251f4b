"""Randomised response: one record's answer, replaced by a uniform one with a known probability (Warner 1965)."""

from __future__ import annotations

from dataclasses import dataclass

from sordino import validate
from sordino.events.base import Event, register_event, set_field
from sordino.privacy_loss.pairs import Pair, response_pair


@register_event
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

    def dominating_pair(self, moves: int) -> Pair:
        """Returns the answers of two different truths; no relation can move an answer further than that."""
        return response_pair(self.flip, self.buckets)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns 0: an answer has no tails, and it is not drawn by this library."""
        return 0.0
