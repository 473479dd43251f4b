"""Releases on a random part of the data: who takes part, and what one pass amounts to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino import validate
from sordino.events.base import Event, checked, set_field


@dataclass(frozen=True)
class Poisson(Event):
    """`event` on a draw in which each record takes part independently with probability `rate`.

    Args:
        rate: the probability of taking part.
        event: released on the draw.

    Examples:
        >>> from sordino.accounting import PLD
        >>> from sordino.events import Gaussian, Repeat
        >>> round(PLD().epsilon(Repeat(Poisson(0.01, Gaussian(1.1)), 500), delta=1e-5), 3)
        1.083

    """

    rate: float
    event: Event
    assumes: ClassVar[str] = (
        "each record is in a lot by its own secret coin (Poisson sampling): the lots of this run were drawn so"
    )

    def __post_init__(self) -> None:
        set_field(self, "rate", validate.rate("rate", self.rate))
        set_field(self, "event", checked(self.event))


@dataclass(frozen=True)
class FixedSize(Event):
    """`event` on a uniformly random subset of exactly `batch_size` of `dataset_size` records (replace-one).

    Args:
        batch_size: records in the subset.
        dataset_size: records in all.
        event: released on it.

    Examples:
        >>> from sordino.events import Gaussian
        >>> FixedSize(100, 1000, Gaussian(1.1))
        FixedSize(batch_size=100, dataset_size=1000, event=Gaussian(multiplier=1.1))

    """

    batch_size: int
    dataset_size: int
    event: Event
    assumes: ClassVar[str] = "each lot is a uniformly random subset of fixed size: the lots of this run were drawn so"

    def __post_init__(self) -> None:
        set_field(self, "batch_size", validate.count("batch_size", self.batch_size))
        set_field(self, "dataset_size", validate.count("dataset_size", self.dataset_size))
        if self.batch_size > self.dataset_size:
            raise ValueError(f"batch_size={self.batch_size}: must be <= dataset_size={self.dataset_size}")
        set_field(self, "event", checked(self.event))


@dataclass(frozen=True)
class TruncatedPoisson(Event):
    """`event` on a Poisson draw at `rate` from `dataset_size` records, cut at random to at most `max_batch`.

    Args:
        rate: the probability of taking part.
        dataset_size: records in all.
        max_batch: no draw is larger.
        event: released on the draw.

    Examples:
        >>> from sordino.events import Gaussian
        >>> TruncatedPoisson(0.01, dataset_size=1000, max_batch=30, event=Gaussian(1.1)).max_batch
        30

    """

    rate: float
    dataset_size: int
    max_batch: int
    event: Event
    assumes: ClassVar[str] = "lots by secret coins, cut at random to a largest size: the lots of this run were drawn so"

    def __post_init__(self) -> None:
        set_field(self, "rate", validate.rate("rate", self.rate))
        set_field(self, "dataset_size", validate.count("dataset_size", self.dataset_size))
        set_field(self, "max_batch", validate.count("max_batch", self.max_batch))
        set_field(self, "event", checked(self.event))


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

    def __post_init__(self) -> None:
        set_field(self, "bins", validate.count("bins", self.bins))
        set_field(self, "event", checked(self.event))


@dataclass(frozen=True)
class Shuffle(Event):
    """One pass over the data in random disjoint batches; `event` composes what was released on each (zero-out).

    A record is in at most one batch of the pass, so it meets at most one of the releases.

    Args:
        event: the composition of what was released on the batches.

    Examples:
        >>> from sordino.events import Gaussian, Repeat
        >>> Shuffle(Repeat(Gaussian(1.1), 10))
        Shuffle(event=Repeat(event=Gaussian(multiplier=1.1), count=10))

    """

    event: Event
    assumes: ClassVar[str] = "each record is in one lot per epoch; no amplification by shuffling is assumed"

    def __post_init__(self) -> None:
        set_field(self, "event", checked(self.event))


@dataclass(frozen=True)
class Batch(Event):
    """All that was released on one batch of a `Shuffle`d pass, kept together: `Shuffle(Repeat(Batch(e), n))`.

    Without it, each release inside `Shuffle` stands for another batch, and a record meets only one of them.

    Args:
        event: all of one batch.

    Examples:
        >>> from sordino.events import Gaussian, Together
        >>> Batch(Together(Gaussian(1.1), Gaussian(20.0)))
        Batch(event=Together(events=(Gaussian(multiplier=1.1), Gaussian(multiplier=20.0))))

    """

    event: Event

    def __post_init__(self) -> None:
        set_field(self, "event", checked(self.event))
