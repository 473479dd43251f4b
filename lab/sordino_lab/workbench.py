"""The workbench: what an experiment is given, namely its size, its seeds and its trained curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from sordino_lab import training_store
from sordino_lab.curve_plan import SEVERAL_SEEDS, CurvePlan, expected_seconds
from sordino_lab.experiment import ExperimentSize
from sordino_lab.training_curves import TrainedCurve
from sordino_lab.training_store import FinishedTraining, NotTrained

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Workbench:
    """A size, and the folder where trainings are kept."""

    size: ExperimentSize
    cache: Path
    trains: bool = True
    """False: only trainings that are there already are used."""

    def pick(self, tiny: _Value, quick: _Value, middle: _Value, full: _Value) -> _Value:
        """Returns the value for this size."""
        return self.size.pick(tiny, quick, middle, full)

    @property
    def is_tiny(self) -> bool:
        """Whether this is the size of the tests, at which nothing can be judged."""
        return self.size is ExperimentSize.TINY

    def judge(self, holds: bool | None) -> bool | None:
        """Returns the verdict, or None at the size of the tests; the result store withholds it from all that is reduced."""
        return None if self.is_tiny else holds

    def make_rng(self, seed: int = 0) -> np.random.Generator:
        """Returns a generator for made-up data and simulated errors, never for noise that a claim speaks of."""
        return np.random.default_rng(seed)

    def train(self, plans: Sequence[CurvePlan]) -> list[TrainedCurve]:
        """Returns the curves that an experiment asks its workbench for: every plan with its seeds, trained now where
        they are not in the cache.

        Raises:
            NotTrained: this workbench only uses what is there, and no seed of a plan is.

        """
        # A curve without any seed cannot be drawn, so its figure is not either.
        found = self.find_trained(plans)
        if len(found) < len(plans):
            labels = {one.plan.label for one in found}
            missing = [plan.label for plan in plans if plan.label not in labels]
            raise NotTrained(f"not trained at the size {self.size.value}: {', '.join(missing)}")
        return found

    def find_trained(self, plans: Sequence[CurvePlan]) -> list[TrainedCurve]:
        """Returns the plans of which the workbench has at least one seed, with those seeds; with `trains`, all plans
        and seeds.
        """
        found = []
        for plan in plans:
            # Seeds that are there are used even if others are not trained yet.
            asked = (self._find_or_train(plan, seed) for seed in self.seeds_of(plan))
            runs = tuple(run for run in asked if run is not None)
            if runs:
                found.append(TrainedCurve(plan, runs))
        return found

    def missing(self, plans: Sequence[CurvePlan]) -> list[str]:
        """Returns the labels of the plans of which the workbench has no seed."""
        if self.trains:
            return []
        there = [one.plan for one in self.find_trained(plans)]
        return [plan.label for plan in plans if plan not in there]

    def _find_or_train(self, plan: CurvePlan, seed: int) -> FinishedTraining | None:
        """Returns the training of one seed of a plan for the workbench, trained now if the workbench trains; None if it
        is not there.
        """
        settings = plan.settings(self.size, seed)
        if self.trains:
            return training_store.train(settings, self.cache)
        return training_store.find(settings, self.cache)

    def seeds_of(self, plan: CurvePlan) -> range:
        """Returns the seeds that the workbench runs a plan with at its size.

        At the source's own size a row that takes long is trained with one seed, and the figure says so.
        """
        if self.is_tiny:
            return range(1)
        if self.size is ExperimentSize.FULL and expected_seconds(plan.settings(self.size, 0)) > SEVERAL_SEEDS:
            return range(1)
        return range(plan.seeds)

    def commands(self, plans: Sequence[CurvePlan]) -> list[str]:
        """Returns the commands that repeat some plans by hand, each once."""
        return list(dict.fromkeys(plan.command(self.size) for plan in plans))
