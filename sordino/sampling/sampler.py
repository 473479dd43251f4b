"""Who is in a lot, and what the draw is worth. A sampler states its own amplification; nothing guesses it from a rate.

Draw k of a sampler is a pure function of the random stream and k, so a run resumes at a number.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from sordino.events import Event
from sordino.rng import Rng


@dataclass(frozen=True)
class Draw:
    """One lot's records."""

    indices: NDArray[np.int64]
    amplify: Callable[[Event], Event]  # from what is released on the draw to what that is worth
    cover: int | None = None  # draws of one cover touch disjoint records; None when draws are independent


def unamplified(event: Event) -> Event:
    """What a draw is worth that hides nobody."""
    return event


@runtime_checkable
class Sampler(Protocol):
    """A way to draw lots."""

    @property
    def size_is_public(self) -> bool:
        """True when neighbouring datasets have the same number of records."""
        ...

    def expected(self, n: int) -> float:
        """The expected size of a lot from n records."""
        ...

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Draws number start, start + 1, … of n records, without end."""
        ...
