"""Runs one recipe with several seeds: mean, spread, and what all runs cost together.

    sordino train spiral --seeds 3          spiral-…/seed-0, seed-1, seed-2 and summary.json

Run k has initial weights of `init_seed` + k. Its lots and noise are its own: from the operating system, or from
`seed` + k, where a seed was given.

**Privacy:** each run's claim covers that run. Who sees all of them, or the mean of them, or the best of them, sees all
that they released: `joint_claim` is the claim of that.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordino import validate
from sordino.accounting import PLD
from sordino.app import atomic_files
from sordino.app.runs.directory import FINISHED
from sordino.app.runs.fit import History, carry_out_run, folder_for
from sordino.app.runs.progress_view import View
from sordino.app.runs.settings import Settings
from sordino.events import compose
from sordino.ledger import claims
from sordino.ledger.claims import Claim, Guarantee

SUMMARY = "summary.json"


@dataclass(frozen=True)
class Spread:
    """The mean, standard deviation (None for a single run) and values of one number over the runs."""

    mean: float
    deviation: float | None
    values: tuple[float, ...]

    @staticmethod
    def of_values(values: Sequence[float | None]) -> Spread | None:
        """Returns the spread of a number over runs with several seeds, or None if a run has no such number.

        >>> Spread.of_values([1.0, 3.0])
        Spread(mean=2.0, deviation=1.4142135623730951, values=(1.0, 3.0))
        """
        # A mean over the runs that went well would flatter, so one missing value leaves none.
        finite_values = tuple(value for value in values if value is not None and math.isfinite(value))
        if not finite_values or len(finite_values) < len(values):
            return None
        return Spread(
            statistics.fmean(finite_values),
            statistics.stdev(finite_values) if len(finite_values) > 1 else None,
            finite_values,
        )


@dataclass(frozen=True, eq=False)
class SeveralSeeds:
    """The results of all runs."""

    folder: Path
    runs: tuple[History, ...]
    joint_claim: Claim
    """Of all that was released, by all runs."""

    @property
    def test_accuracy(self) -> Spread | None:
        """The test accuracy at the end of each run."""
        return Spread.of_values([run.test_accuracy for run in self.runs])

    @property
    def test_loss(self) -> Spread | None:
        """The test loss at the end of each run."""
        return Spread.of_values([run.test_loss for run in self.runs])

    @property
    def finished(self) -> bool:
        """Whether all runs took all their steps."""
        return all(run.status == FINISHED for run in self.runs)

    def table(self) -> dict[str, Any]:
        """Returns the results of runs with several seeds as the content of summary.json."""
        return {
            "status": FINISHED if self.finished else self.runs[-1].status,
            "seeds": len(self.runs),
            "test_accuracy": None if self.test_accuracy is None else vars(self.test_accuracy),
            "test_loss": None if self.test_loss is None else vars(self.test_loss),
            "seconds": sum(run.seconds for run in self.runs),
            "each": [{"run": str(run.run), "claim": claims.claim_to_json(run.claim)} for run in self.runs],
            "together": claims.claim_to_json(self.joint_claim),
        }


def carry_out_several(settings: Settings, seeds: int, out: str | Path | None, view: View) -> SeveralSeeds:
    """Carries out new runs with several seeds, one after the other; a run that is asked to stop is the last."""
    # The summary is written after every run, so that a stopped series has one too.
    folder = Path(out) if out is not None else folder_for(settings.recipe.name)
    runs: list[History] = []
    for number in range(validate.count("seeds", seeds)):
        view.say(f"seed {number}, {number + 1} of {seeds}")
        runs.append(carry_out_run(_settings_of_run(settings, number), folder / f"seed-{number}", view))
        result = SeveralSeeds(folder, tuple(runs), claim_together([run.claim for run in runs], settings.recipe.delta))
        atomic_files.write_file(folder / SUMMARY, json.dumps(result.table(), indent=1) + "\n")
        if runs[-1].status != FINISHED:
            break
    return result


def claim_together(each: Sequence[Claim], delta: float) -> Claim:
    """Returns the claim about all runs with several seeds on the same records together; there is no guarantee if one of
    them has none.
    """
    # One run without a guarantee leaves none for all of them.
    guarantees = [claim for claim in each if isinstance(claim, Guarantee)]
    if len(guarantees) < len(each):
        return next(claim for claim in each if not isinstance(claim, Guarantee))
    uncovered = tuple(dict.fromkeys(name for claim in guarantees for name in claim.not_covered))
    rests = tuple(f"run {number}: {name}" for number, claim in enumerate(guarantees) for name in claim.rests_on)
    unit = guarantees[0].unit  # of all: they are runs of one recipe
    return claims.make_claim(compose([claim.event for claim in guarantees]), delta, PLD(), uncovered, rests, unit=unit)


def _settings_of_run(settings: Settings, number: int) -> Settings:
    """Returns the settings of run `number` among the runs with several seeds, with seeds of its own."""
    # Initial weights differ from run to run, and so do draws and noise where a seed was given.
    options = settings.options
    seed = None if options.seed is None else options.seed + number
    return replace(settings, options=replace(options, seed=seed, init_seed=options.init_seed + number))
