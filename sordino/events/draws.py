"""Releases on a random part of the data: who takes part, and what one pass amounts to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino import validate
from sordino.events.base import Event, checked, set_field


@dataclass(frozen=True)
class Poisson(Event):
    """`event` on a draw in which each record takes part independently with probability `rate`."""

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
    """`event` on a uniformly random subset of exactly `batch_size` of `dataset_size` records (replace-one)."""

    batch_size: int
    dataset_size: int
    event: Event
    assumes: ClassVar[str] = "each lot is a uniformly random subset of fixed size: the lots of this run were drawn so"

    def __post_init__(self) -> None:
        validate.count("batch_size", self.batch_size)
        validate.count("dataset_size", self.dataset_size)
        if self.batch_size > self.dataset_size:
            raise ValueError(f"batch_size={self.batch_size}: must be <= dataset_size={self.dataset_size}")
        set_field(self, "event", checked(self.event))


@dataclass(frozen=True)
class TruncatedPoisson(Event):
    """`event` on a Poisson draw at `rate` from `dataset_size` records, cut at random to at most `max_batch`."""

    rate: float
    dataset_size: int
    max_batch: int
    event: Event
    assumes: ClassVar[str] = "lots by secret coins, cut at random to a largest size: the lots of this run were drawn so"

    def __post_init__(self) -> None:
        set_field(self, "rate", validate.rate("rate", self.rate))
        validate.count("dataset_size", self.dataset_size)
        validate.count("max_batch", self.max_batch)
        set_field(self, "event", checked(self.event))


@dataclass(frozen=True)
class BallsInBins(Event):
    """One pass in `bins` batches, `event` released on each; every record is in one, by its own uniform choice."""

    bins: int
    event: Event
    assumes: ClassVar[str] = "each record chose its lot of an epoch in secret: the lots of this run were drawn so"

    def __post_init__(self) -> None:
        validate.count("bins", self.bins)
        set_field(self, "event", checked(self.event))


@dataclass(frozen=True)
class Shuffle(Event):
    """One pass over the data in random disjoint batches; `event` composes what was released on each (zero-out).

    A record is in at most one batch of the pass, so it meets at most one of the releases.
    """

    event: Event
    assumes: ClassVar[str] = "each record is in one lot per epoch; no amplification by shuffling is assumed"

    def __post_init__(self) -> None:
        set_field(self, "event", checked(self.event))


@dataclass(frozen=True)
class Batch(Event):
    """All that was released on one batch of a `Shuffle`d pass, kept together: `Shuffle(Repeat(Batch(e), n))`.

    Without it, each release inside `Shuffle` stands for another batch, and a record meets only one of them.
    """

    event: Event

    def __post_init__(self) -> None:
        set_field(self, "event", checked(self.event))
