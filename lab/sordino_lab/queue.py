"""The queue: trains everything at the sources' own size, the most valuable for each CPU-hour first.

    sordino lab queue run         works until nothing is left, at the lowest priority
    sordino lab queue status      what is done, what is left, and how long it will take
    sordino lab queue pause       stops the workers at once, for instance while speed is measured
    sordino lab queue resume      lets them go on

The queue may be killed at any moment: it looks at which trainings are there and goes on with the others, and the one
that it was at resumes from its checkpoint. Finished trainings are files (see `training_store`) that can be copied into a
checkout and committed while the queue runs; `sordino lab draw` makes figures of them.
"""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from sordino.app import atomic_files
from sordino.app.runs.settings import Settings
from sordino.file_lock import Locked, lock_file
from sordino_lab import result_store, training_store
from sordino_lab.catalogue import experiments
from sordino_lab.curve_plan import expected_seconds
from sordino_lab.experiment import Experiment, ExperimentSize
from sordino_lab.runner import make_result
from sordino_lab.scoreboard import MISSED, PublishedNumber, published_numbers, score_results
from sordino_lab.training_store import digest, train, unfinished_folder
from sordino_lab.workbench import Workbench
from sordino_lab.workers import Workers, interrupt_on_sigterm

Say = Callable[[str], None]

_WORTH: Mapping[str, float] = {
    "sorted-mnist-fixed": 3.0,
    "sorted-mnist-median": 3.0,
    "abadi-cifar": 4.0,
    "wd-mnist": 3.0,
    "wd-linear": 3.0,
    "fmnist": 2.0,
    "abadi-mnist": 1.5,
    "mean": 3.0,
    "outlook": 1.5,
    "sorted-cifar": 2.0,
    "wd-cifar": 1.0,
    "projected": 1.5,
}
"""What one curve of an id is worth, by the beginning of the id; a longer beginning counts before a shorter one."""
_ORDINARY = 1.0
_PUBLISHED = 60.0
"""How much more a curve is worth for each number that the source prints of it."""
_NO_FULL_FIGURE = 120.0
"""How much more the curves of an id are worth together, if no figure of it at the source's size comes with the package."""
_FURTHER_SEED = 0.02
"""What a second or third seed is worth beside the first. Where a published number of the curve is missed, or one of all
curves together, it is worth as much as the first, because it tells a miss by chance from another."""
_POLL = 0.5
_LONGEST = 86_400.0
"""A training of more than a day is left to people with more cores; the status says how many there are."""


@dataclass(frozen=True)
class QueuedJob:
    """One training, or one figure that needs none, at the source's own size."""

    name: str
    """The digest of a training's settings, or the id of a figure."""
    about: str
    worth: float
    seconds: float
    """Expected, on one core."""
    ids: tuple[str, ...]
    settings: Settings | None = None


@dataclass(frozen=True)
class Queue:
    """Where the queue keeps its state, its finished trainings and the figures that need none."""

    folder: Path
    """Of the pause file and the state; trainings that have begun are beside it in `unfinished`."""
    trainings: Path
    out: Path

    @property
    def pause_file(self) -> Path:
        """While this file is there, nothing works."""
        return self.folder / "pause"

    @property
    def lock_file(self) -> Path:
        """What the process that works off the queue holds."""
        return self.folder / "lock"

    @property
    def state_file(self) -> Path:
        """What the queue was doing last."""
        return self.folder / "state.json"

    def run(self, processes: int, say: Say) -> int:
        """Works off the queue of trainings until nothing is left; returns how many jobs failed.

        Raises:
            ValueError: another process works off the queue in this folder.

        """
        self.folder.mkdir(parents=True, exist_ok=True)
        # Two processes would begin the same trainings, and each would write its own state over that of the other.
        with open(self.lock_file, "ab") as file:
            try:
                lock_file(file, wait=False)
            except Locked:
                raise ValueError(
                    f"{self.folder}: another process works off this queue; see `sordino lab queue status`, or end it first"
                ) from None
            try:
                return self._work_off(processes, say)
            except KeyboardInterrupt:
                say("stopped; what was finished is kept, and `sordino lab queue run` goes on from there")
                raise

    def _work_off(self, processes: int, say: Say) -> int:
        """Works off the queue as the only process that does; returns how many jobs failed."""
        failed: set[str] = set()
        bench = Workbench(ExperimentSize.FULL, self.folder)
        try:
            with interrupt_on_sigterm(), Workers(processes, niceness=19) as workers:
                # Jobs are begun in this order while there is room; what ends is reported.
                waiting = self.waiting()
                jobs = {job.name: job for job in waiting}
                order = [job.name for job in waiting if job.seconds <= _LONGEST]
                begun: dict[str, float] = {}
                numbers: dict[int, str] = {}
                paused = False
                while order or workers.running:
                    # A pause stops the workers where they are; they keep their memory and use no processor.
                    if self.pause_file.exists() != paused and hasattr(signal, "SIGSTOP"):
                        paused = not paused
                        if not paused:
                            workers.resume()
                        self._write_state([numbers[k] for k in workers.running], jobs, paused=paused)
                        say("paused; `sordino lab queue resume` lets it go on" if paused else "resumed")
                    # Again and again, because a worker that is just starting cannot be stopped yet.
                    if paused:
                        workers.pause()
                    while order and workers.has_room and not paused:
                        name = order.pop(0)
                        # A job may have been done by another process since the order was made; it is not done twice.
                        if self._is_done(jobs[name]):
                            continue
                        number = len(numbers)
                        numbers[number], begun[name] = name, time.monotonic()
                        workers.start(number, carry_out_job, jobs[name], bench, self.trainings, self.out)
                        say(f"begun: {jobs[name].about}, about {_write_duration(jobs[name].seconds)}")
                        self._write_state([numbers[k] for k in workers.running], jobs, paused=paused)
                    for number, code in workers.take_finished():
                        name = numbers[number]
                        # A failure does not end the queue: the other jobs do not depend on it and may take days.
                        if code:
                            failed.add(name)
                        said = f"failed with exit code {code}" if code else "done"
                        left = sum(jobs[one].seconds for one in order)
                        say(
                            f"{said}: {jobs[name].about}, {_write_duration(time.monotonic() - begun[name])}; "
                            f"{len(order)} left, about {_write_duration(left)} of CPU time"
                        )
                    time.sleep(_POLL)
        finally:
            # The state on disk must not name workers that have ended, whatever ended the loop.
            self._write_state([], {}, paused=False)
        return len(failed)

    def waiting(self) -> list[QueuedJob]:
        """Returns the jobs of the queue that are not done yet, the most valuable for each second first."""
        # What is done is seen from the files alone, so a queue that was killed needs no memory of its own.
        left = [job for job in all_jobs() if not self._is_done(job)]
        # A training that has begun comes first: its checkpoint would otherwise be wasted for long.
        return sorted(left, key=lambda job: (not self._has_begun(job), -job.worth / job.seconds, job.name))

    def status(self) -> str:
        """Returns in words what of the queue is done, what is left by id, and how long it will take."""
        jobs = all_jobs()
        # The estimate is corrected by how long finished trainings really took.
        done = [job for job in jobs if self._is_done(job)]
        left = self.waiting()
        # Trainings of more than a day are counted apart, because the queue leaves them out.
        short = [job for job in left if job.seconds <= _LONGEST]
        factor = _measured_factor(done, self.trainings)
        hours = _write_duration(factor * sum(job.seconds for job in short))
        lines = [
            f"{len(done)} of {len(jobs)} done, {len(short)} left: about {hours} of CPU time "
            f"(the estimate is {factor:.2f} times the table's, from trainings that are done)"
        ]
        if len(short) < len(left):
            long = _write_duration(factor * sum(job.seconds for job in left if job not in short))
            lines.append(
                f"{len(left) - len(short)} more take over a day each, {long} together; the queue leaves them out"
            )
        # What measures time would measure the queue, too, so a person has to choose the moment.
        timed = [one.id for one in experiments().values() if one.measures_time and not self._is_drawn(one.id)]
        if timed:
            lines.append(
                f"{', '.join(timed)}: measured on a quiet machine only, by `sordino lab run {' '.join(timed)} --full`"
            )
        state = json.loads(self.state_file.read_text("utf-8")) if self.state_file.is_file() else {}
        if self.pause_file.exists():
            since = datetime.fromtimestamp(self.pause_file.stat().st_mtime)
            lines.append(f"paused since {since:%H:%M}; `sordino lab queue resume` lets it go on")
        # A queue that was killed could not say so in its state, and one that has just begun has not written it yet.
        pid = int(state.get("pid", 0))
        running = state.get("running") or [] if _is_alive(pid) else []
        if self._is_locked(pid):
            lines += [f"working on: {about}" for about in running] or ["running, at no training yet"]
        else:
            lines.append("not running; `sordino lab queue run` works it off")
        # Jobs are summed up by figure, which is what people wait for.
        by_id: dict[str, list[QueuedJob]] = {}
        for job in short:
            by_id.setdefault(job.ids[0], []).append(job)
        lines += [
            f"  {name}: {len(some)} left, about {_write_duration(factor * sum(job.seconds for job in some))}"
            for name, some in by_id.items()
        ]
        return "\n".join(lines)

    def _is_done(self, job: QueuedJob) -> bool:
        """Returns whether a job of the queue is done: a training is kept, or a figure that needs none is there at the
        source's size.
        """
        if job.settings is not None:
            return training_store.find(job.settings, self.trainings) is not None
        return self._is_drawn(job.name)

    def _is_drawn(self, name: str) -> bool:
        """Returns whether the figure of an id is there at the source's size, of this queue or in the package."""
        # A smaller size does not count: the queue is there to run figures as the sources did.
        for folder in (self.out, result_store.SHIPPED):
            path = folder / f"{name}.json"
            if path.is_file() and json.loads(path.read_text("utf-8"))["size"] == ExperimentSize.FULL.value:
                return True
        return False

    def _is_locked(self, pid: int) -> bool:
        """Returns whether a process works off the queue now; `pid` is the one that the state names."""
        # A process number alone says little: after a restart of the machine it belongs to another program. It only
        # counts for a queue that was begun before there was a lock.
        if not self.lock_file.is_file():
            return _is_alive(pid)
        with open(self.lock_file, "ab") as file:
            try:
                lock_file(file, wait=False)
            except Locked:
                return True
        return False

    def _has_begun(self, job: QueuedJob) -> bool:
        return job.settings is not None and unfinished_folder(job.settings, self.folder).is_dir()

    def _write_state(self, running: Iterable[str], jobs: Mapping[str, QueuedJob], *, paused: bool) -> None:
        state = {
            "pid": os.getpid(),
            "paused": paused,
            "running": [jobs[name].about for name in running],
            "trainings": str(self.trainings.absolute()),
            "out": str(self.out.absolute()),
        }
        atomic_files.write_file(self.state_file, json.dumps(state) + "\n")


def last_folders(folder: Path) -> tuple[Path, Path] | None:
    """Returns where the process that worked off the queue last put trainings and figures, or None if there was none, so
    that its status can be asked for without naming them again.
    """
    state_file = Queue(folder, folder, folder).state_file
    state = json.loads(state_file.read_text("utf-8")) if state_file.is_file() else {}
    return (Path(state["trainings"]), Path(state["out"])) if {"trainings", "out"} <= state.keys() else None


def all_jobs() -> list[QueuedJob]:
    """Returns all jobs of the queue: every training of every id at the source's own size, once, and every figure that
    needs none. Figures that measure time are left out, because the queue works beside everything else.
    """
    bench = Workbench(ExperimentSize.FULL, Path())
    shipped = result_store.read_results(result_store.SHIPPED)
    full = {name for name, made in shipped.items() if not _is_reduced(made)}
    missed = {(one.number.id, _label_of(one.number)) for one in score_results(shipped) if one.status == MISSED}
    found: dict[str, QueuedJob] = {}
    for one in experiments().values():
        # A curve that the source prints numbers of is worth more than one that it only draws. A number that belongs to
        # no single curve, such as the best of a search, needs all of them, and so does a figure that is not there.
        published = _published_by_label(one)
        plans = one.plans(bench) if one.plans is not None else []
        labels = {plan.label for plan in plans}
        of_all = sum(count for label, count in published.items() if label not in labels)
        shared = (_PUBLISHED * of_all + _NO_FULL_FIGURE * (one.id not in full)) / max(1, len(plans))
        miss_of_all = any(name == one.id and label not in labels for name, label in missed)
        if one.measures_time:
            continue
        if one.plans is None:
            worth = _worth_of(one.id) * (1.0 + shared)
            found[one.id] = QueuedJob(one.id, one.id, worth, max(1.0, 10 * one.seconds), (one.id,))
            continue
        for plan in plans:
            for seed in bench.seeds_of(plan):
                settings = plan.settings(ExperimentSize.FULL, seed)
                name = digest(settings)
                worth = _worth_of(one.id) * (1.0 + _PUBLISHED * published.get(plan.label, 0) + shared)
                # Further seeds add a spread to what the first has shown.
                worth *= 1.0 if seed == 0 or miss_of_all or (one.id, plan.label) in missed else _FURTHER_SEED
                before = found.get(name)
                found[name] = QueuedJob(
                    name,
                    before.about if before else f"{one.id}: {plan.label}, seed {seed}",
                    worth + (before.worth if before else 0.0),
                    expected_seconds(settings),
                    (*(before.ids if before else ()), one.id),
                    settings,
                )
    return list(found.values())


def carry_out_job(job: QueuedJob, bench: Workbench, trainings: Path, out: Path) -> None:
    """Carries out one job of the queue, in a worker."""
    if job.settings is not None:
        train(job.settings, bench.cache, trainings)
    else:
        make_result(experiments()[job.name], bench, out)


def _worth_of(name: str) -> float:
    # The longest beginning that fits decides, so that an exception can stand beside its rule.
    beginnings = [one for one in _WORTH if name.startswith(one)]
    return _WORTH[max(beginnings, key=len)] if beginnings else _ORDINARY


def _published_by_label(one: Experiment) -> dict[str, int]:
    """Returns how many published numbers each curve of an id has, by its label; the queue puts trainings of such curves
    first.
    """
    counts: dict[str, int] = {}
    for number in published_numbers():
        if number.id == one.id:
            label = _label_of(number)
            counts[label] = counts.get(label, 0) + 1
    return counts


def _label_of(number: PublishedNumber) -> str:
    """Returns the label of the curve that a published number is about, which is named by what it measures and by its
    curve: "accuracy, DP-SGD, lr 0.1".
    """
    return number.what.partition(", ")[2]


def _is_reduced(made: Mapping[str, Any]) -> bool:
    """Returns whether a stored result is of a run that is smaller than the source's."""
    return bool(made["size"] != ExperimentSize.FULL.value)


def _measured_factor(done: Iterable[QueuedJob], folder: Path) -> float:
    """Returns how many times longer than the table says the queue's finished trainings took, taken together."""
    # Sums and not a mean of ratios, so that long trainings count for more.
    expected = taken = 0.0
    for job in done:
        if job.settings is not None and (kept := training_store.find(job.settings, folder)) is not None:
            expected, taken = expected + job.seconds, taken + kept.seconds
    return taken / expected if expected else 1.0


def _is_alive(pid: int) -> bool:
    """Returns whether there is a process of this number, such as the one that was working off the queue."""
    # Numbers of zero and below mean process groups to `kill`, so they would say something about other processes.
    if pid <= 0:
        return False
    try:
        # Signal 0 is checked by the system and never delivered.
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # A process that may not be signalled belongs to someone else, but it is there.
        return True
    return True


def _write_duration(seconds: float) -> str:
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"
