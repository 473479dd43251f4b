"""Runs, kept by the hash of recipe, seed and version; and all seeds of a plan together, with their spread.

A run without a guarantee keeps the reason its claim gave; one that diverged keeps what it had measured until then.
"""

from __future__ import annotations

import json
import math
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sordino.lab.plan import Plan, digest
from sordino.report.panels import Series
from sordino.runs import files
from sordino.runs.settings import Settings

NAN = math.nan


@dataclass(frozen=True)
class Kept:
    """What is kept of one run."""

    rows: list[dict[str, Any]]
    epsilon: float | None
    reason: str
    """Why there is no guarantee; empty where there is one."""
    diverged: str
    """Why it ended early; empty where it did not."""
    seconds: float
    numbers: dict[str, Any]


@dataclass(frozen=True)
class Trained:
    """All seeds of a plan."""

    plan: Plan
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


def train(settings: Settings, cache: Path, say: Callable[[str], None] = lambda _: None) -> Kept:
    """The run, from the cache or anew."""
    path = cache / f"{digest(settings)}.json"
    if path.is_file():
        return Kept(**json.loads(path.read_text("utf-8")))
    kept = _carried_out(settings)
    cache.mkdir(parents=True, exist_ok=True)
    files.write(path, json.dumps(asdict(kept)))
    return kept


def known(settings: Settings, cache: Path) -> bool:
    """Whether the run is in the cache."""
    return (cache / f"{digest(settings)}.json").is_file()


def _carried_out(settings: Settings) -> Kept:
    from sordino.runs.directory import Run
    from sordino.runs.fit import Failed, carry_out
    from sordino.runs.view import Silent

    folder = Path(tempfile.mkdtemp(prefix="sordino-lab-"))
    begun, diverged = time.process_time(), ""
    try:
        try:
            carry_out(settings, folder / "run", Silent())
        except Failed as error:
            diverged = str(error).split(";")[0]
        run = Run.open(folder / "run")
        rows = [asdict(row) for row in run.rows()]
        said = json.loads((folder / "run" / "privacy.json").read_text("utf-8"))["claim"]
        seconds = time.process_time() - begun
        return Kept(
            rows, said.get("epsilon"), str(said.get("reason") or ""), diverged, seconds, _measured(folder / "run")
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


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
