"""What was done to the data: a small algebra of frozen, comparable events, JSON in and out.

An event says nothing about ε; accountants turn events into numbers. A *multiplier* or *scale* is always relative to
the largest contribution of one record, so events do not know clip bounds or models.

    Gaussian(σ)            a sum with one record's L2 contribution ≤ 1, plus N(0, σ²) on every coordinate
    Laplace(b)             a sum with one record's L1 contribution ≤ 1, plus Lap(b) on every coordinate
    Exponential(ε)         a choice by the exponential mechanism, ε-DP and ε-bounded-range
    DiscreteGaussian(σ)    an integer sum with one record's contribution ≤ 1, plus discrete Gaussian noise
    RandomisedResponse     one record's answer among k, replaced by a uniform one with probability `flip`
    Mixture(w, (e, …))     one of the events, drawn with public weights and made known; the weight missing to 1 is lost
    Poisson(q, e)          e on a draw in which each record takes part by its own coin of probability q
    FixedSize(b, n, e)     e on a uniform subset of exactly b of the n records
    TruncatedPoisson       a Poisson draw cut to a largest size by dropping records at random
    BallsInBins(t, e)      e on each of t batches; every record is in one of them, chosen by its own uniform draw
    Shuffle(e)             the releases e, each on another of the disjoint batches of one random pass over the data
    Batch(e)               inside Shuffle: all that was released on one and the same batch
    Together(e, …)         all of these, one after the other or on the same draw: composition
    Repeat(e, k)           e, k times: composition
    Group(e, k)            e as seen by k records together
    TunePoisson(e, m)      the best of K runs of e, K ~ Poisson(m), nothing else released
    TuneNegativeBinomial   the best of K runs of e, K ~ truncated negative binomial (geometric when shape is 1)
    NonPrivate(reason)     something no theorem covers; it absorbs every event it is composed with

Privacy: `Poisson(q, Together(a, b))` and `Together(Poisson(q, a), Poisson(q, b))` are different events. The first is
two releases on one draw, amplified once; the second two independent draws.
"""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Any

from sordino import validate


class Relation(StrEnum):
    """Which two datasets count as neighbours. A guarantee is meaningless without it."""

    ADD_OR_REMOVE = "add-or-remove-one"
    REPLACE = "replace-one"
    ZERO_OUT = "zero-out-one"


class Event:
    """Base of all events; final classes below, one per mechanism or way of sampling."""

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` makes an equal event."""
        return to_json(self)


def _checked(event: object) -> Event:
    if not isinstance(event, Event):
        raise TypeError(f"event={event!r}: must be an event of sordino.events, not {type(event).__name__}")
    return event


def _set(event: Event, name: str, value: object) -> None:
    """Store a validated value in a frozen dataclass."""
    object.__setattr__(event, name, value)


@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise of standard deviation multiplier × (one record's L2 contribution)."""

    multiplier: float

    def __post_init__(self) -> None:
        _set(self, "multiplier", validate.positive("multiplier", self.multiplier))


@dataclass(frozen=True)
class Laplace(Event):
    """Laplace noise of scale `scale` × (one record's L1 contribution): (1/scale)-DP."""

    scale: float

    def __post_init__(self) -> None:
        _set(self, "scale", validate.positive("scale", self.scale))


@dataclass(frozen=True)
class Exponential(Event):
    """One choice by the exponential mechanism: epsilon-DP."""

    epsilon: float

    def __post_init__(self) -> None:
        _set(self, "epsilon", validate.positive("epsilon", self.epsilon))


@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """Discrete Gaussian noise of parameter `multiplier` on an integer to which one record contributes at most 1."""

    multiplier: float

    def __post_init__(self) -> None:
        _set(self, "multiplier", validate.positive("multiplier", self.multiplier))


@dataclass(frozen=True)
class RandomisedResponse(Event):
    """One answer among `buckets`: with probability `flip` a uniform one, otherwise the true one.

    An absent record answers like some fixed bucket, so the relation makes no difference.
    """

    flip: float
    buckets: int = 2

    def __post_init__(self) -> None:
        _set(self, "flip", validate.rate("flip", self.flip))
        _set(self, "buckets", validate.count("buckets", self.buckets, least=2))


@dataclass(frozen=True)
class Mixture(Event):
    """One of `events`, drawn with public `weights` independently of the data; which one it was is known to all.

    With probability 1 − Σ weights something happens about which nothing is promised.
    """

    weights: tuple[float, ...]
    events: tuple[Event, ...]

    def __post_init__(self) -> None:
        _set(self, "weights", tuple(validate.non_negative("weights", weight) for weight in self.weights))
        _set(self, "events", tuple(_checked(event) for event in self.events))
        if not self.events or len(self.weights) != len(self.events):
            raise ValueError(
                f"weights: {len(self.weights)} for {len(self.events)} events; need one for each, at least one"
            )
        if math.fsum(self.weights) > 1 + 1e-9:
            raise ValueError(f"weights: sum to {math.fsum(self.weights)}; must be <= 1")


@dataclass(frozen=True)
class NonPrivate(Event):
    """Something that no theorem covers, and why, in a sentence a reader understands without the code."""

    reason: str

    def __post_init__(self) -> None:
        if not self.reason:
            raise ValueError("reason='': say why there is no guarantee")


@dataclass(frozen=True)
class Poisson(Event):
    """`event` on a draw in which each record takes part independently with probability `rate`."""

    rate: float
    event: Event

    def __post_init__(self) -> None:
        _set(self, "rate", validate.rate("rate", self.rate))
        _checked(self.event)


@dataclass(frozen=True)
class FixedSize(Event):
    """`event` on a uniformly random subset of exactly `batch_size` of `dataset_size` records (replace-one)."""

    batch_size: int
    dataset_size: int
    event: Event

    def __post_init__(self) -> None:
        validate.count("batch_size", self.batch_size)
        validate.count("dataset_size", self.dataset_size)
        if self.batch_size > self.dataset_size:
            raise ValueError(f"batch_size={self.batch_size}: must be <= dataset_size={self.dataset_size}")
        _checked(self.event)


@dataclass(frozen=True)
class TruncatedPoisson(Event):
    """`event` on a Poisson draw at `rate` from `dataset_size` records, cut at random to at most `max_batch`."""

    rate: float
    dataset_size: int
    max_batch: int
    event: Event

    def __post_init__(self) -> None:
        _set(self, "rate", validate.rate("rate", self.rate))
        validate.count("dataset_size", self.dataset_size)
        validate.count("max_batch", self.max_batch)
        _checked(self.event)


@dataclass(frozen=True)
class BallsInBins(Event):
    """One pass in `bins` batches, `event` released on each; every record is in one, by its own uniform choice."""

    bins: int
    event: Event

    def __post_init__(self) -> None:
        validate.count("bins", self.bins)
        _checked(self.event)


@dataclass(frozen=True)
class Group(Event):
    """`event` as seen by `size` records that come and go together."""

    event: Event
    size: int

    def __post_init__(self) -> None:
        _checked(self.event)
        validate.count("size", self.size)


@dataclass(frozen=True)
class TunePoisson(Event):
    """The best of K runs of `event` by its released score, K ~ Poisson(`mean`) drawn in secret (Papernot & Steinke)."""

    event: Event
    mean: float

    def __post_init__(self) -> None:
        _checked(self.event)
        _set(self, "mean", validate.positive("mean", self.mean))


@dataclass(frozen=True)
class TuneNegativeBinomial(Event):
    """The best of K runs of `event`, K ~ truncated negative binomial (`shape`, `stop`), K ≥ 1, drawn in secret.

    shape 1 is the geometric distribution of Liu & Talwar 2019 with mean 1/stop; shape 0 the logarithmic one.
    """

    event: Event
    shape: float
    stop: float

    def __post_init__(self) -> None:
        _checked(self.event)
        shape = validate.number("shape", self.shape)
        if not -1 < shape < math.inf:
            raise ValueError(f"shape={shape}: must be > -1 and finite")
        _set(self, "shape", shape)
        _set(self, "stop", validate.fraction("stop", self.stop))


@dataclass(frozen=True)
class Shuffle(Event):
    """One pass over the data in random disjoint batches; `event` composes what was released on each (zero-out).

    A record is in at most one batch of the pass, so it meets at most one of the releases.
    """

    event: Event

    def __post_init__(self) -> None:
        _checked(self.event)


@dataclass(frozen=True)
class Batch(Event):
    """All that was released on one batch of a `Shuffle`d pass, kept together: `Shuffle(Repeat(Batch(e), n))`.

    Without it, each release inside `Shuffle` stands for another batch, and a record meets only one of them.
    """

    event: Event

    def __post_init__(self) -> None:
        _checked(self.event)


@dataclass(frozen=True)
class Repeat(Event):
    """`event`, `count` times, each on its own draw if it is sampled."""

    event: Event
    count: int

    def __post_init__(self) -> None:
        _checked(self.event)
        _set(self, "count", validate.count("count", self.count))


@dataclass(frozen=True, init=False)
class Together(Event):
    """All of `events`, composed. `Together()` is the release of nothing."""

    events: tuple[Event, ...]

    def __init__(self, *events: Event) -> None:
        _set(self, "events", tuple(_checked(event) for event in events))


_SAMPLED: Mapping[type[Event], Relation] = {
    Poisson: Relation.ADD_OR_REMOVE,
    FixedSize: Relation.REPLACE,
    Shuffle: Relation.ZERO_OUT,
    TruncatedPoisson: Relation.ADD_OR_REMOVE,
    BallsInBins: Relation.ADD_OR_REMOVE,
}
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

    >>> canonical(Together(Gaussian(2.0), Together(Gaussian(2.0), Repeat(Gaussian(2.0), 3))))
    Repeat(event=Gaussian(multiplier=2.0), count=5)
    """
    reasons = _reasons(event)
    if reasons:
        return NonPrivate("; ".join(reasons))
    return _shorten(event)


def compose(events: Iterable[Event]) -> Event:
    """`Together` of the events, canonical."""
    return canonical(Together(*events))


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
    """The events directly inside an event."""
    if isinstance(event, Together | Mixture):
        return event.events
    inner = getattr(event, "event", None)
    return (inner,) if isinstance(inner, Event) else ()


def walk(event: Event) -> Iterator[Event]:
    """The event and everything inside it, outermost first."""
    yield event
    for child in children(event):
        yield from walk(child)


def _reasons(event: Event) -> list[str]:
    found = (inner.reason for inner in walk(event) if isinstance(inner, NonPrivate))
    return list(dict.fromkeys(found))


def relations(event: Event) -> frozenset[Relation]:
    """The neighbouring relations that the ways of sampling in an event speak about; empty when nothing was sampled."""
    return frozenset(_SAMPLED[type(inner)] for inner in walk(event) if type(inner) in _SAMPLED)


_TYPES: dict[str, type[Event]] = {
    kind.__name__: kind
    for kind in (
        Gaussian,
        Laplace,
        Exponential,
        DiscreteGaussian,
        RandomisedResponse,
        Mixture,
        NonPrivate,
        Poisson,
        FixedSize,
        TruncatedPoisson,
        BallsInBins,
        Shuffle,
        Batch,
        Group,
        TunePoisson,
        TuneNegativeBinomial,
        Repeat,
        Together,
    )
}


def to_json(event: Event) -> dict[str, Any]:
    """A JSON object: the class under `type`, its fields beside it."""
    result: dict[str, Any] = {"type": type(event).__name__}
    for field in dataclasses.fields(event):  # type: ignore[arg-type]  # every concrete event is a dataclass
        result[field.name] = _encode(getattr(event, field.name))
    return result


def _encode(value: Any) -> Any:
    if isinstance(value, Event):
        return to_json(value)
    if isinstance(value, tuple):
        return [_encode(item) for item in value]
    return value


def from_json(data: str | Mapping[str, Any]) -> Event:
    """The event that `to_json` described; text or an object already parsed. Every field is validated again."""
    parsed = json.loads(data) if isinstance(data, str) else data
    if not isinstance(parsed, Mapping) or parsed.get("type") not in _TYPES:
        known = ", ".join(sorted(_TYPES))
        raise ValueError(f"not an event: {str(parsed)[:80]!r}; need an object whose 'type' is one of {known}")
    kind = _TYPES[parsed["type"]]
    names = {field.name for field in dataclasses.fields(kind)}  # type: ignore[arg-type]
    given = {name: _decode(value) for name, value in parsed.items() if name != "type"}
    if set(given) != names:
        raise ValueError(f"{kind.__name__}: needs the fields {sorted(names)}, got {sorted(given)}")
    if kind is Together:
        return Together(*given["events"])
    make: Callable[..., Event] = kind
    return make(**given)


def _decode(value: Any) -> Any:
    if isinstance(value, Mapping):
        return from_json(value)
    if isinstance(value, list):
        return tuple(_decode(item) for item in value)
    return value
