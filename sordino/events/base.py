"""What every event is, and which datasets count as neighbours."""

from __future__ import annotations

from enum import StrEnum
from typing import Any, ClassVar

from sordino import validate


class Relation(StrEnum):
    """Which two datasets count as neighbours. A guarantee is meaningless without it.

    Examples:
        >>> [str(relation) for relation in Relation]
        ['add-or-remove-one', 'replace-one', 'zero-out-one']

    """

    ADD_OR_REMOVE = "add-or-remove-one"
    REPLACE = "replace-one"
    ZERO_OUT = "zero-out-one"

    @property
    def meaning(self) -> str:
        """How two neighbours differ, in words.

        >>> Relation.REPLACE.meaning
        'one record replaced by another'
        """
        return self.between("record")

    def between(self, unit: str) -> str:
        """The same where a unit is something else than a record.

        >>> Relation.ADD_OR_REMOVE.between("speaker")
        'one speaker added or removed'
        """
        return _MEANINGS[self].format(unit)


_MEANINGS = {
    Relation.ADD_OR_REMOVE: "one {} added or removed",
    Relation.REPLACE: "one {} replaced by another",
    Relation.ZERO_OUT: "one {}'s contribution replaced by nothing",
}


class Event:
    """Base of all events; final classes, one per mechanism or way of sampling.

    Examples:
        >>> from sordino.events import Gaussian, Repeat
        >>> Repeat(Gaussian(1.1), 2) == Repeat(Gaussian(1.1), 2)
        True

    """

    assumes: ClassVar[str] = ""
    """For a way of sampling: what a claim about it takes to be true of the draws, for the report."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes an equal event."""
        from sordino.events.codec import to_json  # the codec knows every event, so it comes last

        return to_json(self)


def checked(event: object) -> Event:
    """The event, or that of a noise such as sordino.Gaussian(1.1), which says it itself; anything else is refused."""
    event = getattr(event, "as_event", event)
    if not isinstance(event, Event):
        raise TypeError(f"event={event!r}: must be an event of sordino.events, not {type(event).__name__}")
    return event


LEAST_NOISE = 1e-9
"""Less noise than this, relative to what a record contributes, is none: ε would be beyond floating point."""


def checked_noise(name: str, value: object) -> float:
    """Returns the size of a noise; refuses what is not positive, and what is too little to be accounted for."""
    result = validate.positive(name, value)
    if result < LEAST_NOISE:
        raise ValueError(f"{name}={value!r}: must be at least {LEAST_NOISE:g}; less is no noise at all")
    return result


def set_field(event: Event, name: str, value: object) -> None:
    """Store a validated value in a frozen dataclass."""
    object.__setattr__(event, name, value)
