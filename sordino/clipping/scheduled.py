"""Clipping with a bound that follows a public schedule.

    C_t = schedule(t),  then any clipping rule with that bound

Privacy: the schedule does not look at the data, so at every step the inner rule's proof holds with bound C_t. Clip
and noise both read the one rule of the step, so they cannot fall out of step. The multiplier, and with it the
accounting, does not change.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import ClippingRule, Rule, State
from sordino.clipping.flat import Flat
from sordino.events import Event
from sordino.former_names import former_field
from sordino.per_sample.protocol import Norms
from sordino.registry import Declaration, Method
from sordino.release.sealed import Sealed
from sordino.rng.streams import Rng
from sordino.schedules import Cosine, Logarithmic, Schedule


@former_field("weigher", "clipping")
@dataclass(frozen=True)
class Scheduled:
    """Clips by `clipping(schedule(step))` at every step; `clipping` makes a stateless clipping rule from a bound.

    Args:
        schedule: from the step to a bound; one of `sd.schedules`, or any function of a whole number.
        clipping: makes a clipping rule from that bound.

    Privacy:
        The noise follows the bound of the step, so every step costs what a constant bound would cost.

    Examples:
        >>> import sordino as sd
        >>> schedule = sd.schedules.Linear(2.0, 0.5, steps=100)
        >>> sd.Scheduled(schedule).clipping(schedule(50))
        Flat(bound=1.25)

    """

    schedule: Schedule
    clipping: Callable[[float], ClippingRule] = Flat

    def __post_init__(self) -> None:
        """Refuses a schedule that is no function from steps to bounds."""
        if not callable(self.schedule):
            raise TypeError(f"schedule={self.schedule!r}: must be a function of the step, such as schedules.Cosine")
        # The schedule is tried at step 0, so that a wrong one is refused before training.
        try:
            self.bound_at(0)
        except (AttributeError, TypeError) as error:
            given = validate.shorten(self.schedule)
            raise TypeError(f"schedule={given}: schedule(0) must return a number ({error})") from None

    def bound_at(self, step: int) -> float:
        """Returns the bound at a step, counted from 0."""
        return validate.positive(f"schedule({step})", self.schedule(step), infinite=True)

    def init(self) -> State:
        """Returns step 0."""
        return 0

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the inner clipping rule with the bound of this step."""
        inner = self.clipping(self.bound_at(state))
        return inner.rule(inner.init(), lot)

    def advance(
        self, state: State, tally: Sealed[Tensor] | None, expected_batch: float, rng: Rng
    ) -> tuple[Sequence[Event], State]:
        """Returns no event and the state of scheduled clipping at its next step, whose bound is public."""
        return (), state + 1


DECLARED = Declaration(
    (Scheduled,),
    methods=(
        Method(
            "scheduled",
            "the bound falls by a cosine over the run",
            clipping=lambda run, own: Scheduled(Cosine(run.bound, own["end"], run.steps)),
            parameters=lambda run: {"end": run.bound / 10},
            example="sd.Scheduled(sd.schedules.Cosine(1.0, 0.1, 30))",
        ),
        Method(
            "logarithmic",
            "the bound falls within each pass and starts again",
            clipping=lambda run, own: Scheduled(Logarithmic(run.bound, own["steepness"], run.lots_in_a_pass)),
            parameters=lambda run: {"steepness": 0.5 * run.bound / math.log(max(2, run.lots_in_a_pass))},
            example="sd.Scheduled(sd.schedules.Logarithmic(1.0, 0.2, 10))",
        ),
    ),
)
