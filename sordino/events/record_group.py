"""Groups of records: an event as seen by several records that come and go together."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino import validate
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.events.phase_collector import PhaseCollector


@register_event
@dataclass(frozen=True)
class Group(Event):
    """`event` as seen by `size` records that come and go together.

    Args:
        event: of one record.
        size: how many records come and go together.

    Examples:
        >>> from sordino.events import Gaussian
        >>> Group(Gaussian(5.0), 3)
        Group(event=Gaussian(multiplier=5.0), size=3)

    """

    event: Event
    size: int
    is_counted_one_by_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_field(self, "event", require_event(self.event))
        set_field(self, "size", validate.count("size", self.size))

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds what the inner event amounts to for a group; it knows its own theorem."""
        self.event.add_group_phases(collector, self, self.size, count)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the inner event's bound for a sum that `size` records move together."""
        return self.event.noise_end(moves * self.size, delta, coordinates)
