"""Runs experiments: first their trainings, each once, then the figures, in processes of one thread, longest first.

A training is kept as soon as it is done, and an experiment's JSON as soon as that is, so a sweep that was stopped goes on
where it was.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.app.runs.settings import Settings
from sordino.version import __version__
from sordino_lab import result_store
from sordino_lab.catalogue import find_experiment
from sordino_lab.experiment import Experiment, ExperimentSize
from sordino_lab.training_curves import TrainedCurve
from sordino_lab.training_store import NotTrained, digest, is_known, train
from sordino_lab.workbench import Workbench
from sordino_lab.workers import interrupt_on_sigterm, run_all

Say = Callable[[str], None]
_MOST_NAMED = 4
"""Curves that the note under a figure names where they are missing; the notes of the result name all."""

_WITHOUT_TRAININGS = ("003",)
"""Sources that report no training: the lecture only says what one would show."""


@dataclass(frozen=True)
class ExperimentJob:
    """One piece of work, with what it will roughly cost."""

    name: str
    cost: float
    settings: Settings | None = None


def run_experiments(
    chosen: Sequence[Experiment], size: ExperimentSize, out: Path, *, processes: int, anew: bool, say: Say
) -> list[dict[str, Any]]:
    """Runs the experiments that are not there yet and returns every result, in the order given; `say` is told of the
    progress.

    Raises:
        ValueError: figures cannot be written into `out`.
        WorkerFailed: a worker process ended with an error, which it has printed.

    """
    # A folder that cannot be written to is refused before anything is trained for it.
    result_store.make_folder(out)
    # Trainings come first, because several figures may share one.
    bench = Workbench(size, result_store.cache_folder())
    waiting = [one for one in chosen if anew or not is_done(one, size, out)]
    trainings = _list_trainings(waiting, bench)
    if len(waiting) < len(chosen):
        there = len(chosen) - len(waiting)
        say(
            f"{_count(there, 'figure')} of this size there already; --anew draws {'it' if there == 1 else 'them'} again"
        )
    if trainings:
        say(f"{_count(len(trainings), 'training')} for {_count(len(waiting), 'figure')}")
    work = [
        *trainings,
        *(ExperimentJob(one.file or one.id, one.seconds * (0.2 if one.plans else 1.0)) for one in waiting),
    ]
    clock = ProgressClock(work, say)
    try:
        with interrupt_on_sigterm():
            _carry_out(trainings, bench, out, processes, clock)
            _carry_out([job for job in work if job.settings is None], bench, out, processes, clock)
    except KeyboardInterrupt:
        say("stopped; what was finished is kept, and the same command goes on from there")
        raise
    return [json.loads((out / f"{one.id}.json").read_text("utf-8")) for one in chosen]


def is_done(one: Experiment, size: ExperimentSize, out: Path) -> bool:
    """Returns whether the runner need not run an experiment: a result of this size and version is there, figures and
    all.

    An experiment of one's own is never done, because its file may have changed; its trainings are kept all the same.
    """
    if one.file:
        return False
    path = out / f"{one.id}.json"
    if not path.is_file() or not path.with_suffix(".png").is_file():
        return False
    # Another version may draw otherwise, so its results are made again.
    kept = json.loads(path.read_text("utf-8"))
    return bool(kept.get("size") == size.value and kept.get("version") == __version__)


def make_result(one: Experiment, bench: Workbench, out: Path) -> dict[str, Any]:
    """Runs one experiment in the runner's own process, writes its files and returns its result.

    The seconds of the result count all its trainings, those that were kept before too.
    """
    # Trainings are looked up before the clock starts; their own seconds are added to it.
    trained = () if one.plans is None else bench.find_trained(one.plans(bench))
    begun = time.process_time()
    found = one.run(bench)
    spent = time.process_time() - begun + sum(run.seconds for each in trained for run in each.runs)
    result = result_store.make_result(one, found, bench.size, spent)
    if bench.size is ExperimentSize.FULL and one.plans is not None:
        missing = bench.missing(one.plans(bench))
        # Where network or data are others, or the source trained nothing, the size is not the source's.
        is_ours = one.differs or one.source in _WITHOUT_TRAININGS
        size = "full size" if is_ours else "the source's size"
        result["note"] = f"{size}, {_describe_seeds(trained, missing)}"
        # Methods of which no curve is there are named in the title of the figure, which would promise them otherwise.
        there = {each.plan.method for each in trained}
        lacking = list(dict.fromkeys(plan.method for plan in one.plans(bench) if plan.method not in there))
        result["curves"] = {"drawn": len(trained), "planned": len(trained) + len(missing), "lacking": lacking}
    result_store.write_result(out, result)
    return result


def _describe_seeds(trained: Sequence[TrainedCurve], missing: Sequence[str]) -> str:
    """Returns what the runner writes on a figure at full size: how many seeds, and which curves are not there yet."""
    # A reader must see from the figure how many seeds it rests on.
    counts = sorted({len(each.runs) for each in trained})
    seeds = " to ".join(map(str, counts[:: max(1, len(counts) - 1)])) if counts else "no"
    spread = "" if counts in ([], [1]) else " (mean ± deviation)"
    said = f"{seeds} {'seed' if counts == [1] else 'seeds'} a curve{spread}"
    if len(missing) > _MOST_NAMED:
        return f"{said}; not run yet: {len(missing)} of {len(missing) + len(trained)} curves"
    return f"{said}; not run yet: {'; '.join(missing)}" if missing else said


def draw_from_trainings(one: Experiment, out: Path) -> str:
    """Runs an experiment without training: draws its figure at the source's size from trainings that are there, and
    returns in words what came of it.
    """
    if one.plans is None:
        return "needs no training; `sordino lab run --full` makes it"
    bench = Workbench(ExperimentSize.FULL, result_store.cache_folder(), trains=False)
    # A figure is drawn from what is there, as long as something is.
    missing = bench.missing(one.plans(bench))
    if missing and len(missing) == len(one.plans(bench)):
        return "not trained yet"
    try:
        make_result(one, bench, out)
    except NotTrained as error:
        return str(error)
    return f"drawn; not trained yet: {', '.join(missing)}" if missing else "drawn"


class ProgressClock:
    """Says how much is done and how long the rest may take."""

    def __init__(self, work: Sequence[ExperimentJob], say: Say) -> None:
        self.total = sum(job.cost for job in work)
        self.done, self.count, self.most = 0.0, 0, len(work)
        self.begun, self.say = time.monotonic(), say

    def tick(self, job: ExperimentJob) -> None:
        """Counts one job more of the runner's as done, and says so with the time that is left."""
        self.done, self.count = self.done + job.cost, self.count + 1
        # The time left is judged by cost and not by number, because jobs differ by a factor of a thousand.
        spent = time.monotonic() - self.begun
        left = spent * (self.total - self.done) / self.done if self.done else 0.0
        self.say(f"[{self.count}/{self.most}] {job.name}; {_write_duration(left)} left")


def _list_trainings(waiting: Iterable[Experiment], bench: Workbench) -> list[ExperimentJob]:
    """Returns every training that the runner needs for its experiments and that is not kept yet, once, the longest
    first.
    """
    found: dict[str, ExperimentJob] = {}
    for one in waiting:
        # A training that two figures need is listed once, under the first of them.
        plans = [] if one.plans is None else list(one.plans(bench))
        several = sum(len(bench.seeds_of(plan)) for plan in plans)
        for plan in plans:
            for seed in bench.seeds_of(plan):
                settings = plan.settings(bench.size, seed)
                name = digest(settings)
                # A training that is kept from an earlier run is read, not repeated.
                if name not in found and not is_known(settings, bench.cache):
                    found[name] = ExperimentJob(
                        f"{one.id}: {plan.label}, seed {seed}", 0.8 * one.seconds / several, settings
                    )
    # The longest comes first, so that no long training is begun last while the other workers have nothing to do.
    return sorted(found.values(), key=lambda job: -job.cost)


def _carry_out(
    jobs: Sequence[ExperimentJob], bench: Workbench, out: Path, processes: int, clock: ProgressClock
) -> None:
    """Runs the jobs of the runner, the longest first, here or in worker processes that end with this one."""
    # The longest first, so that no long job is left for the end when other workers are idle.
    ordered = sorted(jobs, key=lambda job: -job.cost)
    if processes <= 1 or len(ordered) <= 1:
        for job in ordered:
            _work(job, bench, out)
            clock.tick(job)
        return
    for number in run_all([(k, _work_apart, (job, bench, out)) for k, job in enumerate(ordered)], processes):
        clock.tick(ordered[number])


def _work_apart(job: ExperimentJob, bench: Workbench, out: Path) -> None:
    """Runs one job of the runner in a worker process; a training that is refused or fails says why in one line."""
    try:
        _work(job, bench, out)
    # What draws a figure may be a user's own code, for which the place of the error is needed.
    except (ValueError, RuntimeError, OSError) as error:
        if job.settings is None:
            raise
        sys.stderr.write(f"{job.name}: {' '.join(str(error).split())}\n")
        sys.exit(1)


def _work(job: ExperimentJob, bench: Workbench, out: Path) -> None:
    """Runs one job of the runner: a training, or else the figure of an experiment."""
    if job.settings is None:
        make_result(find_experiment(job.name), bench, out)
    else:
        train(job.settings, bench.cache)


def _count(count: int, noun: str) -> str:
    return f"1 {noun}" if count == 1 else f"{count} {noun}s"


def _write_duration(seconds: float) -> str:
    return f"about {seconds:.0f} s" if seconds < 90 else f"about {seconds / 60:.0f} min"
