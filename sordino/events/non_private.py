"""What has no guarantee: something that no theorem covers. It absorbs every event it is composed with."""

from __future__ import annotations

from dataclasses import dataclass

from sordino.events.base import Event, register_event


@register_event
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

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns 0: there is no guarantee for which the end of a noise could matter."""
        return 0.0
