"""What an experiment is given: its size, the seeds, the trained curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from sordino_lab import training_store
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.size import ExperimentSize
from sordino_lab.trained import TrainedCurve, train
from sordino_lab.training_cost import SEVERAL_SEEDS, expected_seconds
from sordino_lab.training_store import Kept

_Value = TypeVar("_Value")


class NotTrained(ValueError):
    """A figure needs a training that is not there, and was told not to make it."""


@dataclass(frozen=True)
class Workbench:
    """A size, and where runs are kept."""

    size: ExperimentSize
    cache: Path
    trains: bool = True
    """False: only trainings that are there already are used."""

    def pick(self, tiny: _Value, quick: _Value, middle: _Value, full: _Value) -> _Value:
        """The value for this size."""
        return self.size.pick(tiny, quick, middle, full)

    @property
    def tells(self) -> bool:
        """Whether findings can be judged: not at the size of the tests."""
        return self.size is not ExperimentSize.TINY

    def judged(self, holds: bool) -> bool | None:
        """Returns the verdict, or None at the size of the tests; `store.table` withholds it from all that is reduced."""
        return holds if self.tells else None

    def rng(self, seed: int = 0) -> np.random.Generator:
        """For data made here and simulated errors, never for noise that a claim speaks of."""
        return np.random.default_rng(seed)

    def trained(self, plans: Sequence[CurvePlan]) -> list[TrainedCurve]:
        """Returns every plan with its seeds, trained now where they are not in the cache.

        Raises:
            NotTrained: this workbench only uses what is there, and no seed of a plan is.

        """
        found = self.available(plans)
        if len(found) < len(plans):
            there = {one.plan.label for one in found}
            missing = [plan.label for plan in plans if plan.label not in there]
            raise NotTrained(f"not trained at the size {self.size.value}: {', '.join(missing)}")
        return found

    def available(self, plans: Sequence[CurvePlan]) -> list[TrainedCurve]:
        """Returns the plans of which at least one seed is there, with those seeds; with `trains`, all plans and seeds."""
        found = []
        for plan in plans:
            asked = (self._find_or_train(plan, seed) for seed in self.seeds_of(plan))
            runs = tuple(run for run in asked if run is not None)
            if runs:
                found.append(TrainedCurve(plan, runs))
        return found

    def missing(self, plans: Sequence[CurvePlan]) -> list[str]:
        """Returns the labels of the plans of which no seed is there."""
        if self.trains:
            return []
        there = [one.plan for one in self.available(plans)]
        return [plan.label for plan in plans if plan not in there]

    def _find_or_train(self, plan: CurvePlan, seed: int) -> Kept | None:
        settings = plan.settings(self.size, seed)
        return train(settings, self.cache) if self.trains else training_store.find(settings, self.cache)

    def seeds_of(self, plan: CurvePlan) -> range:
        """Returns the seeds that a plan is run with at this size.

        At the source's own size a row that takes long is trained with one seed, and the figure says so.
        """
        if self.size is ExperimentSize.TINY:
            return range(1)
        if self.size is ExperimentSize.FULL and expected_seconds(plan.settings(self.size, 0)) > SEVERAL_SEEDS:
            return range(1)
        return range(plan.seeds)

    def commands(self, plans: Sequence[CurvePlan]) -> list[str]:
        """What repeats them by hand."""
        return list(dict.fromkeys(plan.command(self.size) for plan in plans))
