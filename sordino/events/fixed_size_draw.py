"""Sampling a subset of fixed size without replacement.

**Privacy:** under replace-one, losses above zero are those of removing a record at rate b/n, losses below zero those of
adding one (Zhu, Dong & Wang 2022, proposition 30). A sum moves by two contributions when a record is replaced.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino import validate
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.events.non_private import NonPrivate
from sordino.events.phase_collector import PhaseCollector
from sordino.events.relation import Relation
from sordino.privacy_loss.lattice import Sampled


@register_event
@dataclass(frozen=True)
class FixedSize(Event):
    """`event` on a uniformly random subset of exactly `batch_size` of `dataset_size` records (replace-one).

    Args:
        batch_size: records in the subset.
        dataset_size: records in all.
        event: released on it.

    Examples:
        >>> from sordino.events import Gaussian
        >>> FixedSize(100, 1000, Gaussian(1.1))
        FixedSize(batch_size=100, dataset_size=1000, event=Gaussian(multiplier=1.1))

    """

    batch_size: int
    dataset_size: int
    event: Event
    assumes: ClassVar[str] = "each lot is a uniformly random subset of fixed size: the lots of this run were drawn so"
    relation: ClassVar[Relation] = Relation.REPLACE
    is_one_draw: ClassVar[bool] = True

    def __post_init__(self) -> None:
        """Validates both sizes and the event."""
        set_field(self, "batch_size", validate.count("batch_size", self.batch_size))
        set_field(self, "dataset_size", validate.count("dataset_size", self.dataset_size))
        # A subset cannot be larger than the set it is drawn from.
        if self.batch_size > self.dataset_size:
            raise ValueError(f"batch_size={self.batch_size}: must be <= dataset_size={self.dataset_size}")
        set_field(self, "event", require_event(self.event))

    def is_shortest(self) -> bool:
        """Returns whether this is a mechanism on a draw, as nearly every step of a training run is."""
        return not isinstance(self.event, NonPrivate) and not self.event.inner_events()

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds to the phases the inner event's pair on a draw of fixed size, a random subset."""
        collector.require_relation(self, Relation.REPLACE)
        rate = self.batch_size / self.dataset_size
        collector.add(Sampled(self.event.dominating_pair(2), rate, subset=True), count)
