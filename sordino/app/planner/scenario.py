"""A scenario: the data, lots, noise or target that the page asks about, checked on arrival."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from sordino import validate
from sordino.events import Correlated, CyclicPoisson, Event, Gaussian
from sordino.events.training import training_event

MOST_RECORDS = 10**10
MOST_LOTS = 10**7
"""Beyond these an answer takes minutes; `sordino account` has no such limits."""

TASKS = {"mnist": 60_000, "fashion-mnist": 60_000, "cifar10": 50_000}
"""Data sets that `sordino train` knows, and their training records."""

LEAST_NOISE, MOST_NOISE = 0.05, 1e6
LEAST_TARGET, MOST_TARGET = 1e-4, 1e3


@dataclass(frozen=True)
class Scenario:
    """A run that might be: one of `multiplier` and `epsilon` is given, the other is found.

    `task` names a data set that `sordino train` knows. With more than one of `bands`, noise is correlated between steps and
    lots are drawn by cyclic Poisson sampling with as many groups as bands.
    """

    dataset_size: int
    batch: float
    epochs: float
    delta: float
    multiplier: float | None = None
    epsilon: float | None = None
    task: str | None = None
    bands: int = 1

    def __post_init__(self) -> None:
        """Checks every field, and that the answer can be computed in reasonable time."""
        # Sizes first.
        size = validate.count("dataset_size", self.dataset_size)
        if size > MOST_RECORDS:
            raise ValueError(f"dataset_size={size}: must be <= {MOST_RECORDS:,}")
        if validate.positive("batch", self.batch) > size:
            raise ValueError(f"batch={self.batch:g}: must be <= dataset_size={size}; a lot is drawn from the data")
        validate.positive("epochs", self.epochs)
        if self.task is not None and TASKS.get(self.task) != size:
            raise ValueError(
                f"task={str(self.task)[:40]!r}: must be one of {', '.join(TASKS)} with its own dataset_size"
            )
        if validate.count("bands", self.bands) > 1 and self.bands * self.batch > size:
            raise ValueError(
                f"bands={self.bands}: each of so many groups has fewer records than a lot; take at most "
                f"{int(size / self.batch)} bands here, or smaller lots"
            )
        # Then the target: exactly one of noise and ε.
        validate.fraction("delta", self.delta)
        if (self.multiplier is None) == (self.epsilon is None):
            raise ValueError("give either multiplier (the noise) or epsilon (the target), not both or none")
        if self.multiplier is not None:
            _refuse_outside("multiplier", self.multiplier, LEAST_NOISE, MOST_NOISE)
        if self.epsilon is not None:
            _refuse_outside("epsilon", self.epsilon, LEAST_TARGET, MOST_TARGET)
        if self.epochs * size / self.batch > MOST_LOTS + 0.5:
            raise ValueError(
                f"epochs={self.epochs:g}: makes {self.epochs * size / self.batch:.3g} lots, at most {MOST_LOTS:,} here; "
                "take larger lots or fewer epochs, or ask `sordino account`"
            )

    @property
    def rate(self) -> float:
        """The probability of each record to be in a lot."""
        return self.batch / self.dataset_size

    @property
    def lots(self) -> int:
        """The number of lots drawn, which is the number of noisy steps."""
        return max(1, round(self.epochs / self.rate))

    def event(self, multiplier: float, lots: int | None = None) -> Event:
        """Returns the event of the run that the scenario describes."""
        if self.bands > 1:
            step = Correlated(multiplier, ("banded", self.bands))
            return CyclicPoisson(
                min(1.0, self.rate * self.bands), self.bands, self.lots if lots is None else lots, step
            )
        return training_event(self.rate, Gaussian(multiplier), self.lots if lots is None else lots)


def parse(data: Any) -> Scenario:
    """Creates a planner's scenario from parsed JSON; whole numbers may be written as 60000.0, as sliders do.

    >>> parse({"dataset_size": 60000.0, "batch": 256, "epochs": 15, "delta": 1e-5, "multiplier": 1.1}).lots
    3516
    """
    # The request is not trusted: unknown fields are refused, and missing ones are named.
    names = [field.name for field in fields(Scenario)]
    if not isinstance(data, Mapping) or not set(data) <= set(names):
        raise ValueError(f"need an object with the fields {', '.join(names)}")
    given = {name: value for name, value in data.items() if value is not None}
    for name in names[:4]:
        if name not in given:
            raise ValueError(f"{name}: is missing; give a number")
    for name in ("dataset_size", "bands"):
        if isinstance(given.get(name), float) and given[name].is_integer():
            given[name] = int(given[name])
    return Scenario(**given)


def _refuse_outside(name: str, value: float, least: float, most: float) -> None:
    if not least <= validate.positive(name, value) <= most:
        raise ValueError(f"{name}={value:g}: must lie between {least:g} and {most:g}")
