"""How events combine: the shortest equal event, what is inside one, which neighbours it speaks about."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from sordino.events.base import Event, Relation
from sordino.events.composition import Group, Repeat, Together, TuneNegativeBinomial, TunePoisson
from sordino.events.draws import BallsInBins, Batch, FixedSize, Poisson, Shuffle, TruncatedPoisson
from sordino.events.mechanisms import (
    DiscreteGaussian,
    Exponential,
    Gaussian,
    Laplace,
    Mixture,
    NonPrivate,
    ProjectedClip,
    RandomisedResponse,
)

_SAMPLED: Mapping[type[Event], Relation] = {
    Poisson: Relation.ADD_OR_REMOVE,
    FixedSize: Relation.REPLACE,
    Shuffle: Relation.ZERO_OUT,
    TruncatedPoisson: Relation.ADD_OR_REMOVE,
    BallsInBins: Relation.ADD_OR_REMOVE,
}
_SIMPLE = frozenset({Gaussian, Laplace, Exponential, DiscreteGaussian, RandomisedResponse, ProjectedClip})
"""Mechanisms with nothing inside."""
_WRAPPERS = (
    Poisson,
    FixedSize,
    Shuffle,
    TruncatedPoisson,
    BallsInBins,
    Batch,
    Group,
    TunePoisson,
    TuneNegativeBinomial,
)


def canonical(event: Event) -> Event:
    """The shortest equal event: flat, run-length coded, with `NonPrivate` having absorbed all else.

    >>> from sordino.events import Gaussian
    >>> canonical(Together(Gaussian(2.0), Together(Gaussian(2.0), Repeat(Gaussian(2.0), 3))))
    Repeat(event=Gaussian(multiplier=2.0), count=5)
    """
    if _is_short(event):
        return event
    reasons = _reasons(event)
    if reasons:
        many_lines = any("\n" in reason for reason in reasons)
        return NonPrivate(("\n" if many_lines else "; ").join(reasons))
    return _shorten(event)


def compose(events: Iterable[Event]) -> Event:
    """`Together` of the events, canonical.

    Args:
        events: any number of them.

    Returns:
        One event.

    Examples:
        >>> from sordino.events import Gaussian
        >>> compose([Gaussian(1.0), Gaussian(1.0)])
        Repeat(event=Gaussian(multiplier=1.0), count=2)

    """
    parts = tuple(events)
    return parts[0] if len(parts) == 1 and _is_short(parts[0]) else canonical(Together(*parts))


def _is_short(event: Event) -> bool:
    """Is this a mechanism, or a sampled one, of which nothing can be left out? Nearly every step of a training run is."""
    kind = type(event)
    if kind is Poisson or kind is FixedSize:
        return type(event.event) in _SIMPLE and getattr(event, "rate", 0.0) != 1.0  # type: ignore[attr-defined]
    return kind in _SIMPLE


def _shorten(event: Event) -> Event:
    if isinstance(event, Repeat):
        inner, count = _run(event)
        return inner if count == 1 else Repeat(inner, count)
    if isinstance(event, Together):
        runs = _merge(_runs(event))
        parts = tuple(inner if count == 1 else Repeat(inner, count) for inner, count in runs)
        return parts[0] if len(parts) == 1 else Together(*parts)
    if isinstance(event, Poisson) and event.rate == 1.0:
        return _shorten(event.event)
    if isinstance(event, Mixture):
        return Mixture(event.weights, tuple(_shorten(inner) for inner in event.events))
    if isinstance(event, _WRAPPERS):
        return dataclasses.replace(event, event=_shorten(event.event))
    return event


def _runs(event: Event) -> Iterator[tuple[Event, int]]:
    """The event as (event, count) runs, Together and Repeat unfolded as far as no pattern is lost."""
    if isinstance(event, Together):
        for part in event.events:
            yield from _runs(part)
        return
    inner, count = _run(event)
    if isinstance(inner, Together) and count == 1:
        yield from _runs(inner)
    elif not (isinstance(inner, Together) and not inner.events):
        yield inner, count


def _run(event: Event) -> tuple[Event, int]:
    count = 1
    while isinstance(event, Repeat):
        count, event = count * event.count, event.event
    inner = _shorten(event)
    if isinstance(inner, Repeat):
        return inner.event, count * inner.count
    return inner, count


def _merge(runs: Iterable[tuple[Event, int]]) -> list[tuple[Event, int]]:
    return [(event, sum(count for _, count in group)) for event, group in groupby(runs, key=lambda run: run[0])]


def children(event: Event) -> tuple[Event, ...]:
    """The events directly inside an event.

    Args:
        event: any event.

    Returns:
        Those directly inside.

    Examples:
        >>> from sordino.events import Gaussian, Poisson
        >>> children(Poisson(0.1, Gaussian(1.0)))
        (Gaussian(multiplier=1.0),)

    """
    if isinstance(event, Together | Mixture):
        return event.events
    inner = getattr(event, "event", None)
    return (inner,) if isinstance(inner, Event) else ()


def walk(event: Event) -> Iterator[Event]:
    """The event and everything inside it, outermost first.

    Args:
        event: any event.

    Returns:
        All events in it.

    Examples:
        >>> from sordino.events import Gaussian, Poisson
        >>> [type(each).__name__ for each in walk(Poisson(0.1, Gaussian(1.0)))]
        ['Poisson', 'Gaussian']

    """
    yield event
    for child in children(event):
        yield from walk(child)


def counted(event: Event, times: int = 1) -> Iterator[tuple[Event, int]]:
    """The events that a composition is made of, with how often each happens; any other event is one, `times` times.

    Args:
        event: any event.
        times: how often it happens.

    Returns:
        Pairs of an event and a number.

    Examples:
        >>> from sordino.events import Gaussian, Repeat
        >>> list(counted(Repeat(Gaussian(1.0), 5)))
        [(Gaussian(multiplier=1.0), 5)]

    """
    if isinstance(event, Together):
        for part in event.events:
            yield from counted(part, times)
    elif isinstance(event, Repeat):
        yield from counted(event.event, times * event.count)
    else:
        yield event, times


def _reasons(event: Event) -> list[str]:
    found = (inner.reason for inner in walk(event) if isinstance(inner, NonPrivate))
    return list(dict.fromkeys(found))


def relations(event: Event) -> frozenset[Relation]:
    """The neighbouring relations that the ways of sampling in an event speak about; empty when nothing was sampled.

    Args:
        event: any event.

    Returns:
        The relations.

    Examples:
        >>> from sordino.events import Gaussian, Poisson
        >>> [str(relation) for relation in relations(Poisson(0.1, Gaussian(1.0)))]
        ['add-or-remove-one']

    """
    return frozenset(_SAMPLED[type(inner)] for inner in walk(event) if type(inner) in _SAMPLED)
