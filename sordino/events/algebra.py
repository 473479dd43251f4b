"""How events combine: the shortest equal event, what is inside one, which neighbours it speaks about."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from sordino import validate
from sordino.events.base import Event, require_event
from sordino.events.non_private import NonPrivate
from sordino.events.relation import Relation
from sordino.events.sequential_composition import Together


def canonical(event: Event) -> Event:
    """Returns the shortest equal event by the algebra of events: flat, run-length coded, with `NonPrivate` having
    absorbed all else.

    >>> from sordino.events import Gaussian, Repeat
    >>> canonical(Together(Gaussian(2.0), Together(Gaussian(2.0), Repeat(Gaussian(2.0), 3))))
    Repeat(event=Gaussian(multiplier=2.0), count=5)
    """
    if event.is_shortest():
        return event
    # What no theorem covers absorbs everything else; each reason is kept once, in order.
    reasons = list(dict.fromkeys(inner.reason for inner in event.walk() if isinstance(inner, NonPrivate)))
    if reasons:
        has_many_lines = any("\n" in reason for reason in reasons)
        return NonPrivate(("\n" if has_many_lines else "; ").join(reasons))
    return event.shorten()


def compose(events: Iterable[Event]) -> Event:
    """Returns the composition of events by the algebra of events: `Together` of them, in canonical form.

    Args:
        events: any number of them.

    Returns:
        One event.

    Examples:
        >>> from sordino.events import Gaussian
        >>> compose([Gaussian(1.0), Gaussian(1.0)])
        Repeat(event=Gaussian(multiplier=1.0), count=2)

    """
    # Everything is checked to be an event before anything is composed.
    parts = tuple(
        require_event(event, may_be_step=True)
        for event in validate.sequence("events", events, "events of sordino.events")
    )
    # A single event that is shortest is canonical already; this runs at every release, so it must be quick.
    return parts[0] if len(parts) == 1 and parts[0].is_shortest() else canonical(Together(*parts))


def is_private(event: Event) -> bool:
    """Returns whether an event, taken apart by the algebra of events, has no part that is outside every theorem.

    >>> is_private(Together(NonPrivate("the largest loss was printed")))
    False
    """
    return not any(isinstance(inner, NonPrivate) for inner in require_event(event).walk())


def children(event: Event) -> tuple[Event, ...]:
    """Returns the events directly inside an event, for the algebra of events.

    Args:
        event: any event.

    Returns:
        Those directly inside.

    Examples:
        >>> from sordino.events import Gaussian, Poisson
        >>> children(Poisson(0.1, Gaussian(1.0)))
        (Gaussian(multiplier=1.0),)

    """
    return event.inner_events()


def walk(event: Event) -> Iterator[Event]:
    """Yields an event and everything inside it, outermost first, for the algebra of events.

    Args:
        event: any event.

    Returns:
        All events in it.

    Examples:
        >>> from sordino.events import Gaussian, Poisson
        >>> [type(each).__name__ for each in walk(Poisson(0.1, Gaussian(1.0)))]
        ['Poisson', 'Gaussian']

    """
    return event.walk()


def relations(event: Event) -> frozenset[Relation]:
    """Returns the neighbouring relations that the samplings inside an event speak about, by the algebra of events; none
    if nothing was sampled.

    Args:
        event: any event.

    Returns:
        The relations.

    Examples:
        >>> from sordino.events import Gaussian, Poisson
        >>> [str(relation) for relation in relations(Poisson(0.1, Gaussian(1.0)))]
        ['add-or-remove-one']

    """
    return frozenset(inner.relation for inner in event.walk() if inner.relation is not None)
