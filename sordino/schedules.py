"""Schedules: public functions of the step, for clipping bounds and learning rates.

They are frozen, printable and callable.

A schedule of learning rates with start 1 is a factor for torch's own: LambdaLR(optimizer, Cosine(1.0, 0.0, steps)).

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
    """A schedule with one value at every step.

    Args:
        value: at every step.

    Examples:
        >>> Constant(1.0)(7)
        1.0

    """

    value: float

    def __call__(self, step: int) -> float:
        """Returns the value."""
        return self.value


@dataclass(frozen=True)
class Linear:
    """A straight line from `start` to `end` over `steps` steps, then constant.

    Args:
        start: at step 0.
        end: from step `steps` on.
        steps: in between.

    Examples:
        >>> Linear(1.0, 0.0, steps=4)(1)
        0.75

    """

    start: float
    end: float
    steps: int

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def __call__(self, step: int) -> float:
        """Returns start + (end − start) · t / steps."""
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
        """Returns end + (start − end) · ½(1 + cos(π t / steps))."""
        return self.end + (self.start - self.end) * 0.5 * (1 + math.cos(math.pi * min(step, self.steps) / self.steps))


@dataclass(frozen=True)
class Warmup:
    """A rise from 0 to `then(0)` over `steps` steps, after which `then` runs from its own beginning.

    Args:
        steps: of the rise.
        then: what comes after.

    Examples:
        >>> Warmup(2, Constant(1.0))(1)
        0.6666666666666666

    """

    steps: int
    then: Schedule

    def __post_init__(self) -> None:
        _check_steps(self.steps)

    def __call__(self, step: int) -> float:
        """Returns then(0) · (t + 1) / (steps + 1) during the rise, so that no step is 0, and `then` afterwards."""
        if step < self.steps:
            return self.then(0) * (step + 1) / (self.steps + 1)
        return self.then(step - self.steps)


@dataclass(frozen=True)
class RiseAndFall:
    """A straight rise from `start` to `peak` over `rise` steps, then a straight fall to `end` at step `steps`, then
    constant.

    A rate that is small while the loss is steep, large in the middle, and small at the end.

    >>> [RiseAndFall(0.0, 1.0, 0.0, rise=2, steps=6)(t) for t in range(8)]
    [0.0, 0.5, 1.0, 0.75, 0.5, 0.25, 0.0, 0.0]
    """

    start: float
    peak: float
    end: float
    rise: int
    steps: int

    def __post_init__(self) -> None:
        _check_steps(self.steps)
        validate.count("rise", self.rise)
        if self.rise >= self.steps:
            raise ValueError(f"rise={self.rise}: must be < steps={self.steps}, so that there is something to fall in")

    def __call__(self, step: int) -> float:
        """Returns the value on the rise, or on the fall after it."""
        if step < self.rise:
            return Linear(self.start, self.peak, self.rise)(step)
        return Linear(self.peak, self.end, self.steps - self.rise)(step - self.rise)


@dataclass(frozen=True)
class Epochs:
    """A schedule by the epoch instead of the step: constant within each epoch of `period` steps.

    The cosine per epoch lr₀ · ½(1 + cos(π E / E_max)) is Epochs(Cosine(lr₀, 0.0, E_max), period).

    >>> [Epochs(Linear(1.0, 0.0, 2), period=3)(t) for t in range(7)]
    [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.0]
    """

    schedule: Schedule
    period: int

    def __post_init__(self) -> None:
        validate.count("period", self.period)

    def __call__(self, step: int) -> float:
        """Returns schedule(⌊t / period⌋)."""
        return self.schedule(step // self.period)


@dataclass(frozen=True)
class Held:
    """A schedule by the step that changes only at the beginning of each epoch of `period` steps, and is held within it.

    >>> [Held(Linear(1.0, 0.0, 6), period=3)(t) for t in range(7)]
    [1.0, 1.0, 1.0, 0.5, 0.5, 0.5, 0.0]
    """

    schedule: Schedule
    period: int

    def __post_init__(self) -> None:
        validate.count("period", self.period)

    def __call__(self, step: int) -> float:
        """Returns schedule(period · ⌊t / period⌋)."""
        return self.schedule(step - step % self.period)


@dataclass(frozen=True)
class Logarithmic:
    """A bound that falls within each epoch of `period` batches and starts again:

    c(b) = A ln(period + 1 − b) + top − A ln(period), b = 1 … period, with A = `steepness`.

    Args:
        top: at the beginning of an epoch.
        steepness: A.
        period: batches in an epoch.

    Examples:
        >>> round(Logarithmic(top=1.0, steepness=0.1, period=10)(9), 4)
        0.7697

    """

    top: float
    steepness: float
    period: int

    def __post_init__(self) -> None:
        """Raises ValueError where a parameter is out of range, or where the bound would not stay above 0."""
        validate.positive("top", self.top)
        validate.positive("steepness", self.steepness)
        validate.count("period", self.period)
        # The logarithm is largest at the end of the period; there the bound must still be positive.
        largest = self.top / math.log(self.period) if self.period > 1 else math.inf
        if self.steepness >= largest:
            raise ValueError(
                f"steepness={self.steepness}: the bound would reach {self(self.period - 1):g} at the epoch's end; "
                f"must be < top / ln(period) = {largest:g}"
            )

    def __call__(self, step: int) -> float:
        """Returns c(b) at b = step mod period + 1."""
        b = step % self.period + 1
        return self.steepness * math.log(self.period + 1 - b) + self.top - self.steepness * math.log(self.period)
