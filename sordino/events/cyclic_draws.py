"""Cyclic Poisson sampling: the event of a whole phase whose lots are drawn from one group of records after the other.

**Privacy:** (Choquette-Choo et al. 2023, arXiv:2306.08153, theorem 4) A record is in one group, by its own coin, and takes
part in steps j, j + b, j + 2b, …, each with probability q. With at most b bands these columns of C share no row, so the
output falls into parts of which each depends on one of the coins: the phase is exactly the composition over the columns
of Poisson(q, Gaussian(σ / ‖C[:, j + r b]‖)). The first group has the most columns and the longest ones, so it is the
worst. What else is released on a lot joins the part of its step.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino import validate
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.events.correlated_steps import Correlated, find_correlated, releases_of_step
from sordino.events.phase_collector import PhaseCollector
from sordino.events.poisson_draw import Poisson
from sordino.events.relation import Relation
from sordino.events.sequential_composition import Repeat, Together
from sordino.matrix_factorization.participation import column_norms


@register_event
@dataclass(frozen=True)
class CyclicPoisson(Event):
    """`event` in each of `steps` steps, on Poisson draws at `rate` from one of `groups` groups after the other.

    Args:
        rate: the probability of taking part, within the group.
        groups: how many groups take turns.
        steps: of the whole phase.
        event: released on every draw.

    Examples:
        >>> from sordino.accounting import PLD
        >>> from sordino.events import Correlated
        >>> phase = CyclicPoisson(0.1, 16, 512, Correlated(3.0, ("banded", 16)))
        >>> round(PLD().epsilon(phase, delta=1e-6), 3)
        1.406

    """

    rate: float
    groups: int
    steps: int
    event: Event
    is_whole_phase: ClassVar[bool] = True
    relation: ClassVar[Relation] = Relation.ADD_OR_REMOVE
    assumes: ClassVar[str] = (
        "each record is in one group by its own secret coin, and in the lots of its group by further coins: the lots of "
        "this run were drawn so"
    )

    def __post_init__(self) -> None:
        """Validates the numbers, and that a record cannot come back within the bands of the noise."""
        set_field(self, "rate", validate.rate("rate", self.rate))
        set_field(self, "groups", validate.count("groups", self.groups))
        set_field(self, "steps", validate.count("steps", self.steps))
        set_field(self, "event", require_event(self.event, may_be_step=True))
        # The bands of the noise reach back over that many steps. Within them a record may take part once, which holds
        # if its group comes back no sooner than that.
        part = find_correlated(self.event)
        bands = 1 if part is None else part.factorisation.bands_in(self.steps)
        if bands > self.groups:
            raise ValueError(
                f"noise of {bands} bands with {self.groups} groups: a record may come back within the bands, and no "
                "theorem covers that.\nUse at least as many groups as bands; InverseBanded and Buffered, whose matrices "
                "are full, need FixedOrder."
            )

    def expand(self) -> Event:
        """Returns the event of cyclic Poisson draws as a composition over the columns of the first group, which is the
        worst.
        """
        # All columns but the last are whole, so they are counted.
        last = (self.steps - 1) // self.groups * self.groups
        whole = [Repeat(Poisson(self.rate, self._at_column(0)), last // self.groups)] if last else []
        return Together(*whole, Poisson(self.rate, self._at_column(last)))

    def _at_column(self, column: int) -> Event:
        """Returns all that is released in cyclic draws depending on whether a record takes part in one step, that of a
        column of C.
        """
        # Correlated noise counts by the norm of the column, that is by how far one participation moves all steps
        # together.
        return Together(
            *(
                part.at_sensitivity(_column_norm(part, self.steps, column)) if isinstance(part, Correlated) else part
                for part in releases_of_step(self.event)
            )
        )

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds one sampled release for every turn of the record's group."""
        collector.require_relation(self, Relation.ADD_OR_REMOVE, Relation.ZERO_OUT)
        self.expand().add_phases(collector, count)

    def without_amplification(self) -> Event:
        """Returns the phase with a record in every lot of its group, which dominates it."""
        return CyclicPoisson(1.0, self.groups, self.steps, self.event)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the bound of the expanded event; a column of C reaches into as many steps as it has bands."""
        return self.expand().noise_end(moves, delta, coordinates * self.groups)


def _column_norm(part: Correlated, steps: int, column: int) -> float:
    """Returns ‖C[:, column]‖ of the correlated noise on cyclic draws; only the last columns, cut off by the end of the
    phase, are shorter.
    """
    coefficients = part.factorisation.encoder(steps)
    # Column j of C begins on the diagonal, so the end of the phase cuts it off after steps − j entries.
    length = min(len(coefficients), steps - column)
    return float(column_norms(coefficients[:length], length)[0])
