"""What an experiment is given: its size, the seeds, the trained curves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np

from sordino.lab.plan import Plan
from sordino.lab.size import Size
from sordino.lab.trained import Trained, train

_Value = TypeVar("_Value")


@dataclass(frozen=True)
class Workbench:
    """A size, and where runs are kept."""

    size: Size
    cache: Path

    def pick(self, tiny: _Value, quick: _Value, middle: _Value, full: _Value) -> _Value:
        """The value for this size."""
        return self.size.pick(tiny, quick, middle, full)

    @property
    def tells(self) -> bool:
        """Whether findings can be judged: not at the size of the tests."""
        return self.size is not Size.TINY

    def judged(self, holds: bool) -> bool | None:
        """The verdict, or None at the size of the tests."""
        return holds if self.tells else None

    def told(self, holds: bool) -> bool | None:
        """The verdict on what a --quick run, on a part of the records, can neither bear out nor refute: None there."""
        return self.judged(holds) if self.size is not Size.QUICK else None

    def rng(self, seed: int = 0) -> np.random.Generator:
        """For data made here and simulated errors, never for noise that a claim speaks of."""
        return np.random.default_rng(seed)

    def trained(self, plans: Sequence[Plan]) -> list[Trained]:
        """Every plan with all its seeds, from the cache where they are."""
        return [
            Trained(plan, tuple(train(plan.settings(self.size, seed), self.cache) for seed in self.seeds_of(plan)))
            for plan in plans
        ]

    def seeds_of(self, plan: Plan) -> range:
        """Which seeds a plan is run with at this size."""
        return range(1 if self.size is Size.TINY else plan.seeds)

    def commands(self, plans: Sequence[Plan]) -> list[str]:
        """What repeats them by hand."""
        return list(dict.fromkeys(plan.command(self.size) for plan in plans))
