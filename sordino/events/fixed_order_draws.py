"""A fixed order: the event of a whole phase in which a record takes part every `separation` steps, and never by a coin.

**Privacy:** with correlated noise the phase releases C G + σ Z once, and a record moves C G by at most the sensitivity of
the strategy for its pattern {j, j + b, j + 2b, …}: exactly Gaussian(σ / sens) (Denisov et al. 2022, arXiv:2202.08312, who
also cover gradients that are chosen adaptively). Whatever else is released on a lot happens as often as a record takes
part. It is about a record's contribution replaced by nothing: removing the record would move all others.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino import validate
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.events.correlated_steps import Correlated, find_correlated, releases_of_step
from sordino.events.phase_collector import PhaseCollector
from sordino.events.relation import Relation
from sordino.events.sequential_composition import Repeat, Together
from sordino.matrix_factorization.participation import largest_participations
from sordino.matrix_factorization.strategies import sensitivity_of


@register_event
@dataclass(frozen=True)
class FixedOrder(Event):
    """`event` in each of `steps` steps, of which a record takes part in every `separation`-th.

    Args:
        steps: of the whole phase.
        separation: batches in an epoch.
        event: released on every batch.

    Examples:
        >>> from sordino.accounting import PLD
        >>> from sordino.events import Correlated
        >>> phase = FixedOrder(1000, 1000, Correlated(3.0, ("banded", 1000)))
        >>> round(PLD().epsilon(phase, delta=1e-6), 4)
        2.7677

    """

    steps: int
    separation: int
    event: Event
    is_whole_phase: ClassVar[bool] = True
    relation: ClassVar[Relation] = Relation.ZERO_OUT
    assumes: ClassVar[str] = "the order of the records is the same in every epoch; no amplification is assumed"

    def __post_init__(self) -> None:
        set_field(self, "steps", validate.count("steps", self.steps))
        set_field(self, "separation", validate.count("separation", self.separation))
        set_field(self, "event", require_event(self.event, may_be_step=True))
        find_correlated(self.event)

    def expand(self) -> Event:
        """Returns the event of a fixed order as one Gaussian release for the correlated noise of all steps, and the
        rest once per epoch.
        """
        # Nothing is random about who takes part, so the worst position of a record decides, for the correlated noise
        # and for everything else.
        uses = largest_participations(self.steps, self.separation)
        return Together(
            *(
                part.at_sensitivity(sensitivity_of(part.factorisation, self.steps, self.separation))
                if isinstance(part, Correlated)
                else Repeat(part, uses)
                for part in releases_of_step(self.event)
            )
        )

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds the one Gaussian release that the phase is, and what else was released."""
        collector.require_relation(self, Relation.ZERO_OUT)
        self.expand().add_phases(collector, count)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the bound of the expanded event, whose one release has the coordinates of all steps."""
        return self.expand().noise_end(moves, delta, coordinates * self.steps)
