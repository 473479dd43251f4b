"""One run in progress: draws, steps, evaluations, checkpoints, and the write-ahead entries.

    write the key  →  save checkpoint t  →  reserve steps t … t+k on the disk  →  draw, release, step, k times  →
    save checkpoint t+k  → …

A process that dies anywhere in this leaves a checkpoint and a mark above all that it may have released. The next one goes
on from the checkpoint and releases the same values again, from the same key, parameters, data and settings, which tells
nobody anything new; where it cannot be sure to compute the same bits, the steps up to the mark are charged and left out,
and what follows has noise from a new key.

Privacy: the claim is the ledger's. Only evaluations on the public test set are shown and written; the training loss is
disclosed by name when it is asked for.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from sordino.app.runs import preparation, run_checkpoint
from sordino.app.runs.before import before
from sordino.app.runs.configuration_changes import changed, load_state
from sordino.app.runs.diagnosis import Diagnosis, asked
from sordino.app.runs.directory import RUNNING, Row, Run
from sordino.app.runs.distributed_files import Crew, Elsewhere
from sordino.app.runs.evaluate import at_evaluation
from sordino.app.runs.job import TRAINING_LOSS, Job
from sordino.app.runs.parameter_digest import digest
from sordino.app.runs.progress_view import View
from sordino.app.runs.run_checkpoint import Checkpoint
from sordino.app.runs.write_ahead import Ahead
from sordino.distributed.process_group import fresh
from sordino.environment import difference, here
from sordino.events import NonPrivate
from sordino.ledger.claims import Claim, Guarantee
from sordino.ledger.ledger import Ledger
from sordino.ledger.live_epsilon import LiveEpsilon
from sordino.lots.lot import Lot
from sordino.noise_key import NoiseKey, WrongKey, add_to_gitignore, erase_secret, read_secret, write_secret
from sordino.optim import Average
from sordino.replay import Replay
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Informed

ENTERED = Replay("the steps are in the write-ahead ledger, and nothing that makes them is another", entered=True)
ALONE = Crew()
_LOWER = "lower learning_rate in config.toml"
NO_KEY = "its noise key is gone"
SAME_RECORDS = "the records are those the run began with: the key that would show it is gone"
REPLAY = "steps replayed after a crash did not give the same parameters, so their noise was used twice"


class TrainingNotFinite(RuntimeError):
    """Raised when the parameters or the test loss are no longer finite."""


class Training:
    """A run in progress, with everything that changes while it trains."""

    def __init__(self, job: Job, run: Run, ahead: Ahead | Elsewhere, view: View, crew: Crew = ALONE) -> None:
        self.job, self.run, self.ahead, self.view, self.crew = job, run, ahead, view, crew
        recipe, options, problem = job.settings.recipe, job.settings.options, job.problem
        self.ledger = Ledger()
        self.private = job.private(options.seed, self.ledger, crew.ranks)
        for name in job.not_covered():
            self.ledger.disclose(name)
        self.model, self.optimizer = problem.model, problem.optimizer
        self.diagnosis = Diagnosis(asked(options.diagnose), self.model)
        self.average = Average(self.model, recipe.ema) if recipe.ema else None
        self.prepared = not before(recipe)
        self.preparation = fresh() if options.seed is None else Rng.from_seed(options.seed).child("prepare")
        self.rows: list[Row] = []
        self.seconds, self.saved, self._since = 0.0, -1, time.perf_counter()
        self._live = LiveEpsilon(recipe.delta)
        self._lots: Iterator[Lot] | None = None
        self._written_key: dict[str, Any] | None = None

    @contextmanager
    def tested(self) -> Iterator[nn.Module]:
        """Yields the model that is evaluated and kept: with its averaged weights, if the recipe averages."""
        with nullcontext() if self.average is None else self.average.swapped():
            yield self.model

    def claim(self) -> Claim:
        """Returns the claim about everything that was done so far."""
        return self.private.claim(self.job.settings.recipe.delta)

    def begin(self) -> None:
        """Begins a new run: the first checkpoint is on the disk before anything is released."""
        self.save()
        self._reserve(here(self.crew.environment))

    def resume(self, found: Checkpoint, secret: Mapping[str, Any] | None) -> None:
        """Continues from a checkpoint: by replay where that repeats every bit, else past what may have been released.

        `secret` is the noise key of the run, or None where it is gone: then nothing can be replayed.
        """
        # Find out whether a replay would repeat every bit.
        other = self._difference(found.state)
        has_key = self._load(found.state, secret)
        if (
            not has_key and self.private.steps >= self.job.steps
        ):  # finished: the key was erased, and nothing is to be done
            self.saved = found.step
            return
        # Without the key no noise can be repeated. With it, but with other bits, old noise must not meet new sums.
        if not has_key:
            other = f"{other}, {NO_KEY}" if other else NO_KEY
            self.ledger.declare(SAME_RECORDS)
        elif other:
            # Samplers that ask the records release what they go by: with new noise. The others draw what nobody has drawn.
            self.private.renew(draws=isinstance(self.job.sampler, Informed))
            self.preparation = fresh()
        self.saved = found.step
        # Steps between the checkpoint and the mark may have been seen: they are charged and skipped, or replayed.
        lost = self._may_have_been_released(found.state) - self.private.steps
        if lost > 0 and other:
            if not self.prepared:
                raise ValueError(
                    f"{self.run.folder}: stopped before its first step, and a replay would not be the same ({other}); "
                    "start the run anew"
                )
            self._leave_out(lost, other)
        elif other:
            self.ahead.branch()
        elif lost > 0:
            self.view.say(
                f"replaying up to {lost} steps that were released before: same noise, same result, no new cost"
            )
        # The next steps are entered on the disk before they are drawn.
        self.run.write_rows(self.rows)
        self._reserve(here(self.crew.environment))

    def loop(self, stop: Callable[[], bool]) -> bool:
        """Trains until the last step, or until asked to stop; returns whether all steps are done."""
        job = self.job
        self._prepare()
        # No step is drawn before the write-ahead ledger has reserved it.
        while self.private.steps < job.steps:
            if self.private.steps >= self.ahead.upto:
                self.save()
                self._reserve()
            self._step()
            if self.private.steps % job.evaluate_every == 0 or self.private.steps == job.steps:
                self._evaluate()
            self.view.step(self.private.steps, self._spent)
            if self.crew.any(stop()):
                break
        # A run that stops in good order leaves a checkpoint and says that nothing later was released.
        self.save()
        self.ahead.close_at(self.private.steps)
        return self.private.steps >= job.steps

    def save(self) -> None:
        """Saves a checkpoint of this moment, unless there is one already."""
        if self.saved == self.private.steps:
            return
        self._note()
        self._tell_if_void()
        self._write_key()
        if self.crew.first:
            run_checkpoint.save(self.run.checkpoints, Checkpoint(self.private.steps, self.state()))
        self.saved = self.private.steps

    def erase_key(self) -> None:
        """Erases the noise key of a finished run, unless it was asked to be kept for an audit."""
        if self.crew.first and not self.job.settings.options.keep_key:
            erase_secret(self.run.folder)

    def _write_key(self) -> None:
        """Writes the noise key to its own file, before the first checkpoint that needs it."""
        key = self.private.secret_state()
        if self.crew.first and key != self._written_key:
            add_to_gitignore(self.run.folder, "SECRET-*")
            write_secret(self.run.folder, {**key, "preparation": self.preparation.state_dict()})
        self._written_key = key

    def _may_have_been_released(self, state: Mapping[str, Any]) -> int:
        """Returns the step below which something may have been released.

        A ledger of version 0.2 may lack its last lines. Steps are reserved in blocks that end where the next checkpoint is
        due, so its newest checkpoint, whole or not, bounds what they may have said.
        """
        if self.ahead.is_complete:
            return self.ahead.upto
        every = max(self.job.checkpoint_every, state["settings"]["options"].get("checkpoint_every") or 1)
        newest = int(run_checkpoint.found(self.run.checkpoints)[0].name.rpartition("-")[2])
        return max(self.ahead.upto, min(self.job.steps, (newest // every + 1) * every))

    def state(self) -> dict[str, Any]:
        """Returns everything that is needed to go on, but for the noise key, which is in a file of its own."""
        return {
            "private": self.private.state_dict(),
            "model": dict(self.model.state_dict()),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "prepared": self.prepared,
            "rows": [asdict(row) for row in self.rows],
            "diagnosis": self.diagnosis.state_dict(),
            "seconds": self.elapsed(),
            "data": self.job.data.digest(self.private.secret_state()["root"]),
            "resolved": self.job.resolved(),
            "settings": {name: dict(table) for name, table in self.job.settings.table().items()},
            "lineage": self.ahead.lineage,
            "entered": self.ahead.position,
        }

    def _difference(self, state: Any) -> str:
        """Returns why the steps after a checkpoint would not be the same bit by bit; empty if they would."""
        another, adjusted = changed(state["settings"], self.job.settings.table())
        if another:
            raise ValueError(f"{self.run.folder}: config.toml is not what the run began with ({another}); put it back")
        branched = "" if state["lineage"] == self.ahead.lineage else "other steps were released after this checkpoint"
        return ", ".join(
            filter(None, (difference(self.ahead.environment, here(self.crew.environment)), adjusted, branched))
        )

    def _load(self, state: Any, secret: Mapping[str, Any] | None) -> bool:
        """Loads a checkpoint; returns False where its noise key is gone, so that nothing can be replayed from it.

        Raises:
            ValueError: if data or configuration are not those the run began with.

        """
        # The data must be that of the run: a keyed digest shows it, without saying anything to others.
        secret = _key_of(state, secret)
        if secret is not None and state["data"] != self.job.data.digest(secret["root"]):
            raise ValueError(
                f"{self.run.folder}: the training records are not those the run began with; "
                "its claim is about those; start a new run"
            )
        if state["resolved"] != self.job.resolved():
            raise ValueError(f"{self.run.folder}: config.toml is not what the run began with; put it back")
        # Everything is restored in an order in which the watch over the parameters begins last.
        self.ledger = Ledger()
        self.private = self.job.private(None, self.ledger, self.crew.ranks)
        self.diagnosis.load_state_dict(state["diagnosis"])
        self.model.load_state_dict(state["model"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        load_state(self.optimizer, state["optimizer"])
        replay = None if secret is None else replace(ENTERED, secret=secret)
        self.private._load(state["private"], replay)  # from here the parameters are watched
        self.prepared = state["prepared"]
        self.preparation = fresh() if secret is None else Rng.replay(secret["preparation"])
        self._written_key = {name: value for name, value in (secret or {}).items() if name != "preparation"}
        self.rows = [Row(**row) for row in state["rows"]]
        self.seconds = float(state["seconds"])
        return secret is not None

    def _prepare(self) -> None:
        """Carries out, once, what is released before the first step."""
        if not self.prepared:
            preparation.carry_out(self.job, self.model, self.ledger, self.preparation)
        self.prepared = True

    def _leave_out(self, lost: int, why: str) -> None:
        """Charges the steps that may have been released, and skips them."""
        self.view.say(
            f"{lost} steps after the checkpoint are charged and left out: a replay would not be the same ({why})"
        )
        for _ in range(min(lost, self.job.steps - self.private.steps)):
            next(self._draws())
        self.ahead.branch()
        self.save()

    def _step(self) -> None:
        """Draws a lot, releases its gradient and takes one optimizer step."""
        lot = next(self._draws(), None)
        if lot is None:
            raise TrainingNotFinite(f"{self.private.diverged}; lower learning_rate in config.toml")
        # The learning rate is a public function of the step.
        rate = self.job.problem.learning_rate(lot.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # Diagnostics were listed in the claim before the first step.
        self.diagnosis.before(self.private, lot)
        losses = self.private.backward(lot)
        if self.private.diverged is not None:
            raise TrainingNotFinite(f"{self.private.diverged}; lower learning_rate in config.toml")
        self.diagnosis.after(self.private)
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        # Parameters are released values, so looking at them costs nothing.
        if not all(bool(torch.isfinite(p).all()) for p in self.model.parameters()):
            raise TrainingNotFinite(f"step {self.private.steps}: the parameters are no longer finite; {_LOWER}")
        self._note()
        if self.job.settings.options.show_private:
            self.view.private("training loss", float(losses.map(torch.mean).disclose(TRAINING_LOSS)))

    def _draws(self) -> Iterator[Lot]:
        """Returns the iterator over the lots that are still to be drawn; it is created on first use."""
        if self._lots is None:
            self._lots = self.private.draws(
                self.job.data.prepared.train,
                self.job.sampler,
                self.job.steps - self.private.steps,
                physical_batch=self.job.physical_batch,
                unit=self.job.unit(),
            )
        return self._lots

    def _evaluate(self) -> None:
        """Evaluates the model and reports the result together with the claim so far."""
        with self.tested() as model:
            found, more = at_evaluation(self.job, self.ledger, model)
            more |= self.diagnosis.taken()
            if self.job.settings.options.trace:
                self.run.write_trace(self.private.steps, model)
        # The test set is public, so a loss that is not finite may stop the run.
        step = self.private.steps
        if not math.isfinite(found.loss):
            raise TrainingNotFinite(f"step {step}: the test loss is {found.loss}; lower learning_rate in config.toml")
        rate, delta = self.job.problem.learning_rate(max(0, step - 1)), self.job.settings.recipe.delta
        epoch = step * self.job.expected_batch / self.job.data.prepared.drawn
        # Every line carries the ε of what was done up to it, or none.
        said = self.claim()
        epsilon = said.epsilon if isinstance(said, Guarantee) else None
        self._tell_if_void()
        if (accuracy := more.get("train_accuracy")) is not None:
            self.view.private("training accuracy", accuracy)
        row = Row(step, epoch, epsilon, delta, found.accuracy, found.loss, rate, self.elapsed(), **more)
        self.rows.append(row)
        self.run.append(row)
        self.view.evaluated(row)

    def _spent(self) -> float | None:
        """Returns ε so far, or None if there is no guarantee."""
        return self._live(self.private.event, self.ledger.coordinates)

    def _note(self) -> None:
        """Enters the parameters in the write-ahead ledger; voids the claim if a replay came to other ones."""
        if not self.ahead.note(self.private.steps, digest(self.model)):
            self.ledger.void(REPLAY)

    def _tell_if_void(self) -> None:
        """Replaces the planned claim at once if there is no guarantee any more, because the process may be killed
        before the end.
        """
        if self.private.steps and isinstance(self.private.event, NonPrivate):
            self.run.write_privacy(self.claim(), RUNNING, self.private.steps, self.job.settings.budget)

    def _reserve(self, environment: dict[str, Any] | None = None) -> None:
        """Enters the steps up to the next checkpoint, and waits until they are on the disk."""
        self.ahead.reserve(self._block(), environment)
        self.crew.wait()  # until it is on the disk

    def _block(self) -> int:
        """Returns the step at which the next checkpoint is due."""
        every = self.job.checkpoint_every
        return min(self.job.steps, (self.private.steps // every + 1) * every)

    def elapsed(self) -> float:
        """Returns the seconds of training, including those of earlier processes."""
        return self.seconds + time.perf_counter() - self._since


def read_key(folder: Path) -> dict[str, Any] | None:
    """Returns the content of a run's secret file, or None if it is gone or cannot be read."""
    try:
        return read_secret(folder)
    except (OSError, ValueError):
        return None


def _key_of(state: Mapping[str, Any], secret: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns the noise key of a checkpoint, from the run's secret file if it is that key's, else None.

    Checkpoints of version 0.2 hold their key themselves.
    """
    private = state["private"]
    if "root" in private:
        streams = {name: private[name]["key"] for name in ("root", "noise", "forward")}
        return {**streams, "preparation": state["preparation"]}
    if secret is None:
        return None
    try:
        NoiseKey.from_table(secret).decrypt(private["encrypted"])
    except (WrongKey, ValueError, KeyError):
        return None
    return secret
