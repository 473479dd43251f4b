"""Public functions of the step, for clip bounds and learning rates. Frozen, printable, callable.

Privacy: a schedule that does not look at the data costs nothing. Its parameters must not be tuned on the private data
without accounting for the tuning.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from sordino import validate

Schedule: TypeAlias = Callable[[int], float]
"""From the step, counted from 0, to a value."""


def _check_steps(steps: int) -> None:
    validate.count("steps", steps)


@dataclass(frozen=True)
class Constant:
    """The same value at every step."""

    value: float

    def __call__(self, step: int) -> float:
        """The value."""
        return self.value


@dataclass(frozen=True)
class Linear:
    """From `start` to `end` over `steps` steps, then constant."""

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def __call__(self, step: int) -> float:
        """Start + (end − start) · t / steps."""
        return self.start + (self.end - self.start) * min(step, self.steps) / self.steps


@dataclass(frozen=True)
class Cosine:
    """Half a cosine from `start` to `end` over `steps` steps, then constant.

    >>> [round(Cosine(1.0, 0.0, 4)(t), 3) for t in range(6)]
    [1.0, 0.854, 0.5, 0.146, 0.0, 0.0]
    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def __call__(self, step: int) -> float:
        """End + (start − end) · ½(1 + cos(π t / steps))."""
        return self.end + (self.start - self.end) * 0.5 * (1 + math.cos(math.pi * min(step, self.steps) / self.steps))


@dataclass(frozen=True)
class Warmup:
    """From 0 to `then(0)` over `steps` steps, after which `then` runs from its own beginning."""

    steps: int
    then: Schedule

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def __call__(self, step: int) -> float:
        """then(0) · (t + 1) / (steps + 1), so that no step is 0."""
        if step < self.steps:
            return self.then(0) * (step + 1) / (self.steps + 1)
        return self.then(step - self.steps)


@dataclass(frozen=True)
class Logarithmic:
    """A bound that falls within each epoch of `period` batches and starts again:

    c(b) = A ln(period + 1 − b) + top − A ln(period), b = 1 … period, with A = `steepness`.
    """

    top: float
    steepness: float
    period: int

    def __post_init__(self) -> None:
        validate.positive("top", self.top)
        validate.positive("steepness", self.steepness)
        validate.count("period", self.period)
        largest = self.top / math.log(self.period) if self.period > 1 else math.inf
        if self.steepness >= largest:
            raise ValueError(
                f"steepness={self.steepness}: the bound would reach {self(self.period - 1):g} at the epoch's end; "
                f"must be < top / ln(period) = {largest:g}"
            )

    def __call__(self, step: int) -> float:
        """c(b) at b = step mod period + 1."""
        b = step % self.period + 1
        return self.steepness * math.log(self.period + 1 - b) + self.top - self.steepness * math.log(self.period)
