"""Balls in bins: one pass in which every record is in one of t batches, by its own uniform choice.

**Privacy:** Chua et al. 2025 and Feldman & Shenfeld 2025; `privacy_loss/allocation.py` has the pair of a whole pass.
Without amplification a record meets one release a pass, which is a bound as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from sordino import validate
from sordino.events.algebra import compose
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.events.phase_collector import PhaseCollector
from sordino.events.relation import Relation
from sordino.privacy_loss.allocation import make_allocation_pair
from sordino.privacy_loss.lattice import Sampled

_CUT = 1e-4  # share of δ that the tails of all passes may cost


@register_event
@dataclass(frozen=True)
class BallsInBins(Event):
    """One pass in `bins` batches, `event` released on each; every record is in one, by its own uniform choice.

    Args:
        bins: batches of the pass.
        event: released on each of them.

    Examples:
        >>> from sordino.events import Gaussian
        >>> BallsInBins(10, Gaussian(1.1))
        BallsInBins(bins=10, event=Gaussian(multiplier=1.1))

    """

    bins: int
    event: Event
    assumes: ClassVar[str] = "each record chose its lot of an epoch in secret: the lots of this run were drawn so"
    relation: ClassVar[Relation] = Relation.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        set_field(self, "bins", validate.count("bins", self.bins))
        set_field(self, "event", require_event(self.event))

    @staticmethod
    def of_lots(bins: int, lots: Iterable[tuple[Event, int]]) -> BallsInBins:
        """Returns a balls-in-bins pass from what was released on its lots, each with how many lots in a row it was
        released on.

        Lots on which different things were released are charged as if each had all of them.
        """
        return BallsInBins(bins, compose(dict.fromkeys(event for event, _ in lots)))

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds the pair of a balls-in-bins pass to the phases, resolved for the δ that is asked for."""
        collector.require_relation(self, Relation.ADD_OR_REMOVE, Relation.ZERO_OUT)
        # One bin holds everybody, so nothing is amplified.
        if self.bins == 1:
            self.event.add_phases(collector, count)
            return
        # The tails that the pair leaves out, over all passes, cost only a small share of the δ that is asked for.
        cut = _CUT * collector.delta / max(collector.passes, 1)
        collector.add(Sampled(make_allocation_pair(self.event.dominating_pair(1), self.bins, cut)), count)

    def without_amplification(self) -> Event:
        """Returns the one release that a record meets in a pass."""
        return self.event
