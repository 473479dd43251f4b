"""Several releases as one: composition, groups of records, the best of many runs."""

from __future__ import annotations

import math
from dataclasses import dataclass

from sordino import validate
from sordino.events.base import Event, checked, set_field

MOST_REPETITIONS = 2**53
"""Whole numbers beyond it are no floats, and no run repeats anything so often."""


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
        set_field(self, "event", checked(self.event))
        set_field(self, "count", validate.count("count", self.count))
        if self.count > MOST_REPETITIONS:
            raise ValueError(f"count: a number of {len(str(self.count))} digits: must be at most {MOST_REPETITIONS:,}")


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
        set_field(self, "events", tuple(checked(event) for event in events))


@dataclass(frozen=True)
class Group(Event):
    """`event` as seen by `size` records that come and go together.

    Args:
        event: of one record.
        size: how many records come and go together.

    Examples:
        >>> from sordino.events import Gaussian
        >>> Group(Gaussian(5.0), 3)
        Group(event=Gaussian(multiplier=5.0), size=3)

    """

    event: Event
    size: int

    def __post_init__(self) -> None:
        set_field(self, "event", checked(self.event))
        set_field(self, "size", validate.count("size", self.size))


@dataclass(frozen=True)
class TunePoisson(Event):
    """The best of K runs of `event` by its released score, K ~ Poisson(`mean`) drawn in secret (Papernot & Steinke).

    Args:
        event: one run.
        mean: of K.

    Examples:
        >>> from sordino.accounting import PLD
        >>> from sordino.events import Gaussian
        >>> round(PLD().epsilon(TunePoisson(Gaussian(5.0), mean=10.0), delta=1e-5), 2)
        1.45

    """

    event: Event
    mean: float

    def __post_init__(self) -> None:
        set_field(self, "event", checked(self.event))
        set_field(self, "mean", validate.positive("mean", self.mean))


@dataclass(frozen=True)
class TuneNegativeBinomial(Event):
    """The best of K runs of `event`, K ~ truncated negative binomial (`shape`, `stop`), K ≥ 1, drawn in secret.

    shape 1 is the geometric distribution of Liu & Talwar 2019 with mean 1/stop; shape 0 the logarithmic one.

    Args:
        event: one run.
        shape: of the distribution of K.
        stop: its other parameter.

    Examples:
        >>> from sordino.accounting import PLD
        >>> from sordino.events import Gaussian
        >>> round(PLD().epsilon(TuneNegativeBinomial(Gaussian(5.0), shape=1.0, stop=0.1), delta=1e-5), 2)
        1.13

    """

    event: Event
    shape: float
    stop: float

    def __post_init__(self) -> None:
        set_field(self, "event", checked(self.event))
        shape = validate.number("shape", self.shape)
        if not -1 < shape < math.inf:
            raise ValueError(f"shape={shape}: must be > -1 and finite")
        set_field(self, "shape", shape)
        set_field(self, "stop", validate.fraction("stop", self.stop))
