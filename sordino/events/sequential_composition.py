"""Composition: several events as one, and one event many times.

**Privacy:** composed events add up: their phases, their Rényi divergences, the ends of their noise. Several releases on
one and the same draw are one release whose dominating pair is the product of theirs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np

from sordino import validate
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.events.phase_collector import PhaseCollector, Unsupported
from sordino.events.relation import Relation
from sordino.privacy_loss.pairs import Array, GaussianPair, Pair
from sordino.privacy_loss.sampled_pairs import make_product_pair

MOST_REPETITIONS = 2**53
"""Whole numbers beyond it are no floats, and no run repeats anything so often."""

_SHOWN_PARTS = 6  # of a composition that is printed on one line; all of them are in the event


@register_event
@dataclass(frozen=True)
class Repeat(Event):
    """`event`, `count` times, each on its own draw if it is sampled.

    Args:
        event: what is done.
        count: how often.

    Examples:
        >>> from sordino.events import Gaussian
        >>> Repeat(Gaussian(1.1), 3)
        Repeat(event=Gaussian(multiplier=1.1), count=3)

    """

    event: Event
    count: int

    def __post_init__(self) -> None:
        set_field(self, "event", require_event(self.event))
        set_field(self, "count", validate.count("count", self.count))
        if self.count > MOST_REPETITIONS:
            raise ValueError(f"count: a number of {len(str(self.count))} digits: must be at most {MOST_REPETITIONS:,}")

    def shorten(self) -> Event:
        """Returns the inner event with all counts multiplied, or the inner event alone if it happens once."""
        inner, count = _one_run(self)
        return inner if count == 1 else Repeat(inner, count)

    def describe(self) -> str:
        """Returns the composition of one event many times, on one line.

        >>> from sordino.events import Gaussian, Poisson
        >>> Repeat(Poisson(0.01, Gaussian(1.1)), 2000).describe()
        '2000 × Poisson(0.01, Gaussian(1.1))'
        """
        return f"{self.count} × {self.event.describe()}"

    def dominating_pair(self, moves: int) -> Pair:
        """Returns the pair of all repetitions on one and the same draw."""
        return _pair_on_one_draw(self, moves)

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds the phases of the inner event, so many times."""
        self.event.add_phases(collector, count * self.count)

    def add_group_phases(self, collector: PhaseCollector, group: Event, size: int, count: int) -> None:
        """Adds the phases of the inner event for a group, so many times."""
        self.event.add_group_phases(collector, group, size, count * self.count)

    def renyi_curve(self, orders: Array, relation: Relation) -> Array:
        """Returns the inner event's divergences, so many times: divergences of one order add up."""
        return self.count * self.event.renyi_curve(orders, relation)

    def without_amplification(self) -> Event:
        """Returns the repetition of what dominates the inner event."""
        return Repeat(self.event.without_amplification(), self.count)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the inner event's bound, so many times."""
        return self.count * self.event.noise_end(moves, delta, coordinates)


@register_event
@dataclass(frozen=True, init=False)
class Together(Event):
    """All of `events`, composed. `Together()` is the release of nothing.

    Args:
        *events: all of them.

    Examples:
        >>> from sordino.events import Gaussian, Laplace
        >>> Together(Gaussian(1.1), Laplace(2.0))
        Together(events=(Gaussian(multiplier=1.1), Laplace(scale=2.0)))

    """

    events: tuple[Event, ...]

    def __init__(self, *events: Event) -> None:
        set_field(self, "events", tuple(require_event(event, may_be_step=True) for event in events))

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> Together:
        """Returns the composition of the events in the one field."""
        return cls(*fields["events"])

    def shorten(self) -> Event:
        """Returns the events without compositions inside one another, equal neighbours as one `Repeat`."""
        parts = tuple(inner if count == 1 else Repeat(inner, count) for inner, count in _merge_equal(_runs(self)))
        return parts[0] if len(parts) == 1 else Together(*parts)

    def describe(self) -> str:
        """Returns the composition of several events on one line, of many parts the first."""
        shown = [part.describe() for part in self.events[:_SHOWN_PARTS]]
        if len(self.events) > _SHOWN_PARTS:
            shown.append(f"… {len(self.events) - _SHOWN_PARTS} more")
        return "(" + " + ".join(shown) + ")"

    def dominating_pair(self, moves: int) -> Pair:
        """Returns the pair of all events on one and the same draw."""
        return _pair_on_one_draw(self, moves)

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds the phases of every event."""
        for inner in self.events:
            inner.add_phases(collector, count)

    def add_group_phases(self, collector: PhaseCollector, group: Event, size: int, count: int) -> None:
        """Adds the phases of every event for a group."""
        for inner in self.events:
            inner.add_group_phases(collector, group, size, count)

    def renyi_curve(self, orders: Array, relation: Relation) -> Array:
        """Returns the sum of the divergences: those of one order add up."""
        curves = (inner.renyi_curve(orders, relation) for inner in self.events)
        return np.asarray(sum(curves, np.zeros(len(orders))))

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the sum over all events; nothing for the release of nothing."""
        return math.fsum(inner.noise_end(moves, delta, coordinates) for inner in self.events)

    def without_amplification(self) -> Event:
        """Returns the composition of what dominates the events."""
        return Together(*(inner.without_amplification() for inner in self.events))


def event_counts(event: Event, times: int = 1) -> Iterator[tuple[Event, int]]:
    """Yields the events that a composition is made of, with how often each happens; any other event is one, `times` times.

    Args:
        event: any event.
        times: how often it happens.

    Returns:
        Pairs of an event and a number.

    Examples:
        >>> from sordino.events import Gaussian, Repeat
        >>> list(event_counts(Repeat(Gaussian(1.0), 5)))
        [(Gaussian(multiplier=1.0), 5)]

    """
    # Counts multiply through nested repetitions and add over parts.
    if isinstance(event, Together):
        for part in event.events:
            yield from event_counts(part, times)
    elif isinstance(event, Repeat):
        yield from event_counts(event.event, times * event.count)
    else:
        yield event, times


def different_releases(event: Event) -> set[Event]:
    """Returns the releases of a sequential composition without their counts; of equal ones, one."""
    inner = event.shorten()
    parts = inner.events if isinstance(inner, Together) else (inner,)
    return {part.event if isinstance(part, Repeat) else part for part in parts}


def _runs(event: Event) -> Iterator[tuple[Event, int]]:
    """Yields a sequential composition as (event, count) runs, Together and Repeat unfolded as far as no pattern is
    lost.
    """
    # A composition is unfolded part by part.
    if isinstance(event, Together):
        for part in event.events:
            yield from _runs(part)
        return
    inner, count = _one_run(event)
    # A repeated composition stays folded, because its pattern is shorter than its parts.
    if isinstance(inner, Together) and count == 1:
        yield from _runs(inner)
    elif not (isinstance(inner, Together) and not inner.events):
        yield inner, count


def _one_run(event: Event) -> tuple[Event, int]:
    """Returns what is inside any number of nested repetitions of a composition, shortened, and the product of their
    counts.
    """
    count = 1
    # Repetitions of repetitions become one.
    while isinstance(event, Repeat):
        count, event = count * event.count, event.event
    inner = event.shorten()
    if isinstance(inner, Repeat):
        return inner.event, count * inner.count
    return inner, count


def _merge_equal(runs: Iterable[tuple[Event, int]]) -> list[tuple[Event, int]]:
    """Returns the runs with equal neighbours as one."""
    return [(event, sum(count for _, count in group)) for event, group in groupby(runs, key=lambda run: run[0])]


def _pair_on_one_draw(event: Event, moves: int) -> Pair:
    """Returns the product of the pairs of all releases in a sequential composition on one draw, its Gaussians taken as
    one first.
    """
    # Gaussians on one draw are one Gaussian of μ² = Σ μᵢ², exactly; the others are multiplied numerically.
    parts = [(inner.dominating_pair(moves), count) for inner, count in event_counts(event)]
    squared = math.fsum(count * pair.mu**2 for pair, count in parts if isinstance(pair, GaussianPair))
    pairs: list[tuple[Pair, int]] = [part for part in parts if not isinstance(part[0], GaussianPair)]
    if squared:
        pairs.append((GaussianPair(math.sqrt(squared)), 1))
    # An event that releases nothing has no pair.
    if not pairs:
        raise Unsupported(event, "releases nothing")
    return pairs[0][0] if len(pairs) == 1 and pairs[0][1] == 1 else make_product_pair(pairs)
