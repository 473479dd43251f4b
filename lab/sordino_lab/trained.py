"""Trains plans, keeps what is finished, and joins all seeds of a plan with their spread.

Only a training that came to its end is kept: at its last step, or where its parameters stopped being finite. One that was
stopped or killed leaves its run directory under `unfinished` in the cache, and the next call resumes it from its last
checkpoint, bit for bit as if it had never been stopped.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sordino.app.report.panels import Series
from sordino.app.runs.settings import Settings
from sordino_lab import training_store
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.training_store import Kept, digest

NAN = math.nan


@dataclass(frozen=True)
class TrainedCurve:
    """All seeds of a plan."""

    plan: CurvePlan
    runs: tuple[Kept, ...]

    @property
    def hollow(self) -> str:
        """Why there is no guarantee."""
        return next((short(run.reason) for run in self.runs if run.reason), "")

    @property
    def epsilon(self) -> float | None:
        """Of every seed the same; None without a guarantee."""
        return None if self.hollow else max((run.epsilon or 0.0 for run in self.runs), default=None)

    @property
    def diverged(self) -> str:
        """How the first seed that failed ended."""
        return next((run.diverged for run in self.runs if run.diverged), "")

    def last(self, name: str = "test_accuracy") -> tuple[float, float]:
        """Mean and standard deviation over seeds of the last evaluation; nan where a seed diverged before its first."""
        factor = 100.0 if name.endswith("accuracy") else 1.0
        values = [factor * float(run.rows[-1][name]) if run.rows and not run.diverged else NAN for run in self.runs]
        return _mean(values), statistics.stdev(values) if len(values) > 1 and all(map(math.isfinite, values)) else 0.0

    def series(self, y: str = "test_accuracy", x: str = "epoch") -> Series:
        """The mean over seeds against x, with the spread as a band."""
        factor = 100.0 if y.endswith("accuracy") else 1.0
        length = max((len(run.rows) for run in self.runs), default=0)
        across = [[run.rows[k] for run in self.runs if k < len(run.rows)] for k in range(length)]
        values = [[factor * float(row[y]) for row in rows if row.get(y) is not None] for rows in across]
        middle, spread = [_mean(one) for one in values], [_spread(one) for one in values]
        several = len(self.runs) > 1
        return Series(
            self.plan.label + (" (stops: not finite)" if self.diverged else ""),
            [float(rows[0][x]) for rows in across],
            middle,
            low=[m - s for m, s in zip(middle, spread, strict=True)] if several else (),
            high=[m + s for m, s in zip(middle, spread, strict=True)] if several else (),
            method=self.plan.method,
            variant=self.plan.variant,
            hollow=self.hollow,
        )


def train(settings: Settings, cache: Path, store: Path | None = None) -> Kept:
    """Returns a finished training: from the package, from the cache, or made now and kept in `store`, or else the cache.

    Raises:
        KeyboardInterrupt: the training was asked to stop; it is kept nowhere, and the next call resumes it.

    """
    found = training_store.find(settings, store or cache)
    if found is not None:
        return found
    folder = unfinished_folder(settings, cache)
    kept = _train_or_resume(settings, folder)
    training_store.keep(settings, kept, store or cache)
    shutil.rmtree(folder, ignore_errors=True)
    return kept


def is_known(settings: Settings, cache: Path) -> bool:
    """Whether a finished training is in the package or in the cache."""
    return training_store.find(settings, cache) is not None


def unfinished_folder(settings: Settings, cache: Path) -> Path:
    """Returns where a training that has begun has its run directory."""
    return cache / "unfinished" / digest(settings)


def _train_or_resume(settings: Settings, folder: Path) -> Kept:
    """Carries out a training in `folder`, from its checkpoint if there is one, and returns what it came to."""
    from sordino.app.runs.directory import Run
    from sordino.app.runs.fit import RunFailed, carry_out_run, resume
    from sordino.app.runs.progress_view import Silent
    from sordino.app.runs.training_loop import TrainingNotFinite

    run_folder, spent, begun = folder / "run", _SpentSeconds(folder / "seconds"), time.process_time()
    diverged = ""
    try:
        if _can_resume(run_folder):
            history = resume(run_folder, Silent())
        else:
            shutil.rmtree(folder, ignore_errors=True)
            history = carry_out_run(settings, run_folder, Silent())
    except RunFailed as error:
        # A training that diverged is a result. One that failed otherwise, for want of disk or memory, is none.
        if not isinstance(error.__cause__, TrainingNotFinite):
            raise
        diverged = str(error).split(";")[0]
    else:
        if not history.finished:
            spent.add(time.process_time() - begun)
            raise KeyboardInterrupt("a training was asked to stop; its checkpoint is kept")
    rows = [asdict(row) for row in Run.open(run_folder).read_rows()]
    said = json.loads((run_folder / "privacy.json").read_text("utf-8"))["claim"]
    seconds = spent.read() + time.process_time() - begun
    return Kept(rows, said.get("epsilon"), str(said.get("reason") or ""), diverged, seconds, _measured(run_folder))


def _can_resume(run_folder: Path) -> bool:
    """Whether a run directory can be resumed with the same bits as an undisturbed run.

    It cannot where nothing was begun, where the run failed, and where code, libraries or processor are not those that began
    it. Such a training starts anew; its records are public, so nothing is charged for it.
    """
    from sordino.app.runs.directory import CONFIG, FAILED, PRIVACY
    from sordino.app.runs.write_ahead import WriteAheadLedger
    from sordino.environment import current_environment, describe_difference

    try:
        if not (run_folder / CONFIG).is_file():
            return False
        if json.loads((run_folder / PRIVACY).read_text("utf-8")).get("status") == FAILED:
            return False
        with WriteAheadLedger(run_folder) as ahead:
            before = ahead.environment
    except FileNotFoundError:
        return False
    except ValueError as error:
        if type(error).__name__ == "Busy":
            raise
        return False
    # Threads are set to what they were by the resumed run itself.
    now = {**current_environment(), "threads": before.get("threads", 0)}
    return bool(before) and not describe_difference(before, now)


class _SpentSeconds:
    """CPU seconds of earlier processes that worked on a training, in a file beside its run directory."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> float:
        with suppress(OSError, ValueError):
            return float(self._path.read_text("utf-8"))
        return 0.0

    def add(self, seconds: float) -> None:
        self._path.write_text(f"{self.read() + seconds:.2f}\n", "utf-8")


def _measured(folder: Path) -> dict[str, Any]:
    """What diagnostics a run left beside its evaluations."""
    path = folder / "diagnostics.jsonl"
    if not path.is_file():
        return {}
    rows = [json.loads(line) for line in path.read_text("utf-8").splitlines()]
    return {"diagnostics": rows}


def short(reason: str) -> str:
    """A few words of why there is no guarantee, for a legend.

    >>> short("the noise multiplier is 0: sums of private gradients were released as they are")
    'no noise'
    """
    found = [few for words, few in _FEW if words in reason]
    return ", ".join(found) or reason.split(":")[0].split(";")[0][:60]


_FEW: Sequence[tuple[str, str]] = (
    ("ranked the records by their gradients", "lots by rank"),
    ("the lot's own gradient lengths", "bound from the lot"),
    ("second gradients where the lot's own", "noiseless way"),
    ("noise multiplier is 0", "no noise"),
)
"""What a reason says, and its words in a legend."""


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else NAN


def _spread(values: Sequence[float]) -> float:
    return statistics.stdev(values) if len(values) > 1 else 0.0
