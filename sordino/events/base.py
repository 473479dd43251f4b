"""What every event is, and which datasets count as neighbours."""

from __future__ import annotations

from enum import StrEnum
from typing import Any


class Relation(StrEnum):
    """Which two datasets count as neighbours. A guarantee is meaningless without it."""

    ADD_OR_REMOVE = "add-or-remove-one"
    REPLACE = "replace-one"
    ZERO_OUT = "zero-out-one"


class Event:
    """Base of all events; final classes, one per mechanism or way of sampling."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes an equal event."""
        from sordino.events.codec import to_json  # the codec knows every event, so it comes last

        return to_json(self)


def checked(event: object) -> Event:
    """The event; anything else is refused."""
    if not isinstance(event, Event):
        raise TypeError(f"event={event!r}: must be an event of sordino.events, not {type(event).__name__}")
    return event


def set_field(event: Event, name: str, value: object) -> None:
    """Store a validated value in a frozen dataclass."""
    object.__setattr__(event, name, value)
