"""The sampler protocol: who is in a lot, and what the draw is worth.

A sampler states its own amplification; nothing guesses it from a rate.

Draw k of a sampler is a pure function of the random stream and k, so a run resumes at a number. An `Informed` sampler
also asks the records (`record_access.py`): its draws are made one at a time, at the model of the moment, and carry what
it must remember to go on from there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sordino.events import Event, NonPrivate, compose
from sordino.rng.streams import Rng
from sordino.sampling.record_access import Records

RANKED_BEFORE_DRAWING = (  # printed with the claim
    "the sampler ranked the records by their gradients before it drew, so whether one is in a lot depends on the others"
)


@dataclass(frozen=True)
class Draw:
    """The records of one lot, and what the draw is worth.

    Args:
        indices: of the records.
        amplify: from the event of a release to that of a release on this draw.
        cover: the pass it belongs to, if a pass is charged as a whole.
        bins: of that pass.
        spent: what drawing it cost.
        memory: what the next draw needs to know.
        of_phase: from the number of steps of a phase and the event of a release to the event of the whole phase.

    Examples:
        >>> import sordino as sd
        >>> from sordino.rng.streams import Rng
        >>> draw = next(sd.Full().draws(3, Rng.from_seed(0), 0))
        >>> draw.indices.tolist()
        [0, 1, 2]

    """

    indices: NDArray[np.int64]
    amplify: Callable[[Event], Event]  # from what is released on the draw to what that is worth
    cover: int | None = None  # draws of one cover, or pass, touch disjoint records; None when draws are independent
    bins: int | None = None  # how many draws a pass has, if every record chose its own independently
    spent: tuple[Event, ...] = ()  # what was released of all records in order to make it; set by `draw_lots`
    memory: Callable[[], Any] | None = None  # what an informed sampler knows after it, as JSON; as secret as the data
    of_phase: Callable[[int, Event], Event] | None = None  # set where all draws of a phase are charged together

    def amplify_in(self, steps: int) -> Callable[[Event], Event]:
        """Returns what turns the event of a release into its charge, in a phase of so many steps."""
        return self.amplify if self.of_phase is None else partial(self.of_phase, steps)


def keep_unamplified(event: Event) -> Event:
    """Returns the event as it is: a draw that hides nobody amplifies nothing."""
    return event


def mark_unproven(event: Event) -> Event:
    """Returns the event without a guarantee, because the draw was made after a look at the records."""
    return compose([NonPrivate(RANKED_BEFORE_DRAWING), event])


@runtime_checkable
class Sampler(Protocol):
    """A sampler: a way to draw lots, which says what its draws are worth."""

    @property
    def size_is_public(self) -> bool:
        """True when neighbouring datasets have the same number of records."""
        ...

    def expected_size(self, n: int) -> float:
        """Returns the expected size of a lot from n records."""
        ...

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields draws number start, start + 1, … of n records, without end."""
        ...


@runtime_checkable
class Informed(Sampler, Protocol):
    """A sampler that asks the records; in a dry run, which has none, `draws` takes them all to be alike."""

    def draws_from(self, records: Records, rng: Rng, start: int, memory: Any) -> Iterator[Draw]:
        """Yields the draws of an informed sampler, one that asks the records: number start, start + 1, …, without end,
        each made when it is asked for.

        `memory` is what the draw before `start` left, None for the first.
        """
        ...


def draw_lots(sampler: Sampler, records: Records, rng: Rng, start: int, memory: Any = None) -> Iterator[Draw]:
    """Yields the draws of any sampler, each with its cost; an informed sampler, which asks the records, has no say in
    that.

    A draw made after a look has no guarantee; what was released in order to make it is charged with it.
    """
    # A sampler that never asks the records is charged by its own theorem.
    if not isinstance(sampler, Informed):
        yield from sampler.draws(len(records), rng, start)
        return
    # One that asked them has no say in what that costs: looking forgoes the guarantee, and releases are charged.
    for draw in sampler.draws_from(records, rng, start, memory):
        yield replace(
            draw, amplify=mark_unproven if records.has_looked else draw.amplify, spent=records.take_spent_events()
        )
