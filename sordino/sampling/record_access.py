"""Access to the records for samplers that ask them something, and what each question costs.

    lengths(rows), labels(rows),
    summaries()                     a look: the sampler sees values of many records, and its draws have no guarantee
    measure(), then flip(rate)      every record flips its own coin, whose bias is a function of its own length
    measure(), then release(m)      a private mechanism answers, and brings its event, which the next draw is charged with

Lengths are the norms of the records' gradients at the model of the moment. `measure` keeps them, sealed in here, until
it is called again: a coin may use lengths that are stale.

Privacy of `flip`: for neighbours D and D + x the coins of the records of D are the same, so with p = p(x) the output
on D + x is (1 − p)·Out(D) + p·(Out(D) with x taking part). That is dominated by Poisson sampling at any rate ≥ p. The rate
is cut at `most`, so the sampler may say Poisson(most) whatever `rate` computes, as long as it treats each row on its
own.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.clipping.clipping_rule import refuse_statistics
from sordino.events import Event
from sordino.release.sealed import Sealed
from sordino.rng.streams import Rng

T = TypeVar("T", bound=np.generic)
Rows: TypeAlias = NDArray[np.int64]
Lengths: TypeAlias = NDArray[np.float32]
Label: TypeAlias = Callable[..., Tensor]
"""A function from the columns of a batch, the arguments of the loss after the model, to one whole number per record."""
Rate: TypeAlias = Callable[[Lengths], NDArray[np.float64]]
"""A function from lengths to probabilities, each row on its own."""
Mechanism: TypeAlias = Callable[[Sealed[Tensor], Rng], tuple[float, Event]]
"""A function from the lengths of all records to a public number and what it cost."""


@dataclass(frozen=True)
class Summaries:
    """What is easily said of records without a model: a few properties of each, and many, one row for each record."""

    few: NDArray[np.float32]
    many: NDArray[np.float32]


class Records:
    """Gives samplers access to `n` records, and keeps count of what was looked at and released."""

    def __init__(
        self,
        n: int,
        lengths: Callable[[Rows], Lengths],
        labels: Callable[[Rows, Label | None], Rows],
        summaries: Callable[[Rows], Summaries] | None = None,
    ) -> None:
        # Lengths and labels are computed when they are asked for, and what was asked decides what is charged.
        self._n, self._lengths, self._labels, self._summaries = n, lengths, labels, summaries
        self._measured_lengths: Lengths | None = None
        self._known_labels: Rows | None = None
        self._spent: list[Event] = []
        self.has_looked = False

    def __len__(self) -> int:
        return self._n

    def lengths(self, rows: Rows) -> Lengths:
        """Returns the current gradient lengths of these records: a look, after which draws have no guarantee."""
        self.has_looked = True
        return self._current_lengths(rows)

    def summaries(self) -> Summaries:
        """Returns a summary of every record, which does not change: a look, after which draws have no guarantee."""
        self.has_looked = True
        if self._summaries is None:
            nothing = np.zeros((self._n, 0), dtype=np.float32)
            return Summaries(nothing, nothing)
        return self._summaries(np.arange(self._n, dtype=np.int64))

    def labels(self, rows: Rows, label: Label | None) -> Rows:
        """Gives a sampler access to the classes of these records, by default the last column. After such access draws
        have no guarantee.
        """
        self.has_looked = True
        if self._known_labels is None:  # labels do not change: ask once for all
            self._known_labels = self._labels(np.arange(self._n, dtype=np.int64), label)
        return self._known_labels[rows]

    def measure(self) -> None:
        """Keeps the lengths of all records as they are now."""
        self._measured_lengths = self._current_lengths(np.arange(self._n, dtype=np.int64))

    def flip(self, rate: Rate, most: float, rng: Rng) -> Rows:
        """Flips the records' coins for a sampler with access to them, and returns whose came up heads, ascending; no
        coin does so with a probability above `most`.
        """
        # A rate that looks at several rows at once would couple the records, and no Poisson rate would bound the draw.
        probabilities = rate(self._require_measured_lengths())
        refuse_statistics(rate, self._require_measured_lengths(), probabilities, rng.child("rows"), f"rate={rate!r}")
        # Cutting at `most` is what makes Poisson(most) a bound for this draw.
        chance = np.clip(np.nan_to_num(probabilities), 0.0, most)
        return np.flatnonzero(rng.uniform(self._n) < chance).astype(np.int64)

    def release(self, mechanism: Mechanism, rng: Rng) -> float:
        """Gives a sampler access to what a private mechanism says about the lengths last measured, and notes what this
        costs.
        """
        # The mechanism gets a sealed copy, so it cannot change the lengths that later coins depend on.
        value, event = mechanism(Sealed(torch.from_numpy(self._require_measured_lengths().copy())), rng)
        self._spent.append(event)
        return value

    def take_spent_events(self) -> tuple[Event, ...]:
        """Returns the events of what was released since the last call."""
        spent, self._spent = tuple(self._spent), []
        return spent

    def save_lengths(self) -> str:
        """Returns the lengths last measured, for a checkpoint, which is as secret as the data."""
        return pack_array(self._require_measured_lengths())

    def restore_lengths(self, saved: str) -> None:
        """Restores the lengths that a checkpoint kept."""
        self._measured_lengths = unpack_array(saved, np.float32)

    def _current_lengths(self, rows: Rows) -> Lengths:
        # A gradient that is not finite contributes nothing to a sum: it counts as short.
        return np.nan_to_num(self._lengths(rows).astype(np.float32, copy=False), nan=0.0, posinf=0.0)

    def _require_measured_lengths(self) -> Lengths:
        if self._measured_lengths is None:
            raise RuntimeError("the records were not measured yet: call measure() before the first flip or release")
        return self._measured_lengths


def pack_array(array: NDArray[Any]) -> str:
    """Returns an array as text, for a checkpoint in JSON."""
    return base64.b64encode(array.tobytes()).decode()


def unpack_array(text: str, dtype: type[T]) -> NDArray[T]:
    """Returns the array that `pack_array` turned into text."""
    return np.frombuffer(base64.b64decode(text), dtype=dtype).copy()


def indistinguishable_records(n: int) -> Records:
    """Returns n records that cannot be told apart, which is what a dry run asks."""
    return Records(n, lambda rows: np.zeros(len(rows), dtype=np.float32), lambda rows, _: np.zeros_like(rows))
