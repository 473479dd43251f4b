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

from sordino.app.runs import directory
from sordino.app.runs.best_model import PUBLIC_VALIDATION, BestModel
from sordino.app.runs.diagnosis import Diagnosis
from sordino.app.runs.directory import RUNNING, Checkpoint, Row, Run
from sordino.app.runs.evaluate import evaluate, evaluate_run
from sordino.app.runs.job import TRAINING_LOSS, Job
from sordino.app.runs.preparation import carry_out_preparation, preparation_events
from sordino.app.runs.progress_view import View
from sordino.app.runs.run_device import device_of
from sordino.app.runs.settings import find_changes, parse_diagnostics
from sordino.app.runs.write_ahead import FollowerLedger, WriteAheadLedger, parameter_digest
from sordino.distributed.process_group import new_rng
from sordino.environment import describe_difference, find_nondeterminism
from sordino.events import NonPrivate
from sordino.ledger.claims import Claim, Guarantee
from sordino.ledger.ledger import Ledger
from sordino.ledger.live_epsilon import LiveEpsilon
from sordino.lots.lot import Lot
from sordino.noise_key import NoiseKey, WrongKey, add_to_gitignore, erase_secret, read_secret, write_secret
from sordino.optim import Average, SignalToNoise
from sordino.replay import Replay
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Informed

REPLAY_ENTERED = Replay("the steps are in the write-ahead ledger, and nothing that makes them is another", entered=True)
_LOWER = "lower learning_rate in config.toml"
NO_KEY = "its noise key is gone"
SAME_RECORDS = "the records are those the run began with: the key that would show it is gone"
REPLAY = "steps replayed after a crash did not give the same parameters, so their noise was used twice"


class TrainingNotFinite(RuntimeError):
    """Raised when the parameters or the test loss are no longer finite."""


class Training:
    """A run in progress, with everything that changes while it trains."""

    def __init__(
        self,
        job: Job,
        run: Run,
        write_ahead_ledger: WriteAheadLedger | FollowerLedger,
        view: View,
    ) -> None:
        self.job, self.run, self.write_ahead_ledger, self.view = job, run, write_ahead_ledger, view
        # The ledger lists what will be disclosed before the first draw, so that no claim can leave it out.
        recipe, options, problem = job.settings.recipe, job.settings.options, job.problem
        self.ledger = Ledger()
        self.private = job.create_private(options.seed, self.ledger, run.ranks)
        for name in job.list_not_covered():
            self.ledger.disclose(name)
        self.model, self.optimizer = problem.model, problem.optimizer
        self.diagnosis = Diagnosis(parse_diagnostics(options.diagnose), self.model)
        self.average = Average(self.model, recipe.ema) if recipe.ema else None
        self.best = None if job.data.validation is None else BestModel(job.data.patience)
        self._declare_validation()
        self.is_prepared = not preparation_events(recipe)
        # Preparation draws from a stream of its own: with it or without it, the steps have the same noise.
        self.preparation = new_rng() if options.seed is None else Rng.from_seed(options.seed).child("prepare")
        self.signal = SignalToNoise(self.private)
        self.rows: list[Row] = []
        self.seconds, self.saved_step, self._started_at = 0.0, -1, time.perf_counter()
        self._live_epsilon = LiveEpsilon(recipe.delta)
        self._lots: Iterator[Lot] | None = None
        self._written_key: dict[str, Any] | None = None

    @contextmanager
    def use_tested_model(self) -> Iterator[nn.Module]:
        """Yields the model that is evaluated and kept: with its averaged weights, if the recipe averages."""
        with nullcontext() if self.average is None else self.average.swap_temporarily():
            yield self.model

    def claim(self) -> Claim:
        """Returns the claim about everything that was done so far."""
        return self.private.claim(self.job.settings.recipe.delta)

    def begin(self) -> None:
        """Begins a new run: the first checkpoint is on the disk before anything is released."""
        # The ledger has its first line alone until then: a run that dies before its first checkpoint is begun anew.
        self.save()
        self._enter_parameters()
        self._reserve_steps(self.run.current_environment())

    def resume(self, checkpoint: Checkpoint, secret: Mapping[str, Any] | None) -> None:
        """Continues the training loop from a checkpoint: by replay where that repeats every bit, else past what may
        have been released.

        `secret` is the noise key of the run, or None where it is gone: then nothing can be replayed.
        """
        # Find out whether a replay would repeat every bit.
        replay_obstacle = self._find_replay_obstacle(checkpoint.state)
        has_key = self.load_checkpoint(checkpoint.state, secret)
        if (
            not has_key and self.private.steps >= self.job.steps
        ):  # finished: the key was erased, and nothing is to be done
            self.saved_step = checkpoint.step
            return
        # Without the key no noise can be repeated. With it, but with other bits, old noise must not meet new sums.
        if not has_key:
            replay_obstacle = f"{replay_obstacle}, {NO_KEY}" if replay_obstacle else NO_KEY
            self.ledger.declare(SAME_RECORDS)
        elif replay_obstacle:
            # Samplers that ask the records release what they go by: with new noise. The others draw what nobody has drawn.
            self.private.renew(draws=isinstance(self.job.sampler, Informed))
            self.preparation = new_rng()
        self.saved_step = checkpoint.step
        # Steps between the checkpoint and the mark may have been seen: they are charged and skipped, or replayed.
        steps_at_risk = self._may_have_been_released(checkpoint.state) - self.private.steps
        if steps_at_risk > 0 and replay_obstacle:
            if not self.is_prepared:
                raise ValueError(
                    f"{self.run.folder}: stopped before its first step, and a replay would not be the same "
                    f"({replay_obstacle}); start the run anew"
                )
            self._charge_and_skip(steps_at_risk, replay_obstacle)
        elif replay_obstacle:
            self.write_ahead_ledger.branch()
        elif steps_at_risk > 0:
            self.view.say(
                f"replaying up to {steps_at_risk} steps that were released before: same noise, same result, no new cost"
            )
        # A run that died between its first checkpoint and the line about its first parameters lacks that line.
        if self.private.steps == 0:
            self._enter_parameters()
        # The next steps are entered on the disk before they are drawn.
        self.run.write_rows(self.rows)
        self._reserve_steps(self.run.current_environment())

    def train(self, stop: Callable[[], bool]) -> bool:
        """Runs the training loop until the last step, or until asked to stop; returns whether all steps are done."""
        job = self.job
        self.prepare()
        self._say_noise_of_steps()
        # No step is drawn before the write-ahead ledger has reserved it.
        while self.private.steps < job.steps and not (self.best is not None and self.best.has_stopped_improving):
            if self.private.steps >= self.write_ahead_ledger.released_below:
                self.save()
                self._reserve_steps()
            self.take_step()
            if self.private.steps % job.evaluate_every == 0 or self.private.steps == job.steps:
                self._evaluate()
            self.view.show_step(self.private.steps, self._epsilon_so_far)
            if self.run.any_rank(stop()):
                break
        else:
            self._charge_steps_left()
        # A run that stops in good order leaves a checkpoint and says that nothing later was released.
        self.save()
        self.write_ahead_ledger.close_at(self.private.steps)
        return self.private.steps >= job.steps

    def _declare_validation(self) -> None:
        """Enters in the training loop's ledger that the validation records are public, where some were given."""
        if self.best is not None:
            self.ledger.declare(PUBLIC_VALIDATION)

    def _charge_steps_left(self) -> None:
        """Charges the steps that a training loop which stops early does not take, because when to stop was chosen by what
        it had released; does nothing after the last step.
        """
        steps_left = self.job.steps - self.private.steps
        if steps_left <= 0 or self.best is None:
            return
        self.view.say(
            f"stopped after step {self.private.steps}: no lower loss on the validation records in "
            f"{self.best.evaluations_since} evaluations; the {steps_left} steps that are left are charged and not taken"
        )
        # Drawing charges a lot. Nothing is summed, so nothing is released.
        for _ in range(steps_left):
            next(self._open_draws())

    def restore_best(self) -> None:
        """Puts the parameters of the best evaluation into the model at the end of the training loop, where there are
        validation records to choose by.
        """
        if self.best is None or not self.best.parameters:
            return
        with self.private.post_processing("the model with the lowest loss on public validation records"):
            self.model.load_state_dict(self.best.parameters)
        self.average = None  # what was kept is the average already, if there is one
        # The last line of metrics is about the model that is kept.
        if self.rows and self.rows[-1].step != self.best.step:
            self._evaluate()

    def _say_noise_of_steps(self) -> None:
        """Says, before the first step of the training loop, what share of a step will be noise and, where it is too much,
        what to change.
        """
        noise, recipe = self.job.step_noise(), self.job.settings.recipe
        if noise is None or self.private.steps:
            return
        records = self.job.data.drawn if recipe.sampler is None and recipe.unit is None else None
        self.view.say(noise.advise(records=records, epsilon=self.job.settings.budget, delta=recipe.delta))

    def save(self) -> None:
        """Saves a checkpoint of the training loop at its current step, unless there is one already."""
        # A second checkpoint of one step would only rewrite the same state.
        if self.saved_step == self.private.steps:
            return
        if self.private.steps:
            self._enter_parameters()
        self._write_claim_if_void()
        self._write_key()
        if self.run.is_writer:
            directory.save_checkpoint(self.run.checkpoints, Checkpoint(self.private.steps, self.checkpoint_state()))
        self.saved_step = self.private.steps

    def erase_key(self) -> None:
        """Erases the noise key of a training loop that has finished, unless it was asked to be kept for an audit."""
        # A key that is gone cannot take the noise off, and a finished run needs none.
        if self.run.is_writer and not self.job.settings.options.keep_key:
            erase_secret(self.run.folder)

    def _write_key(self) -> None:
        """Writes the noise key of the training loop to its own file, before the first checkpoint that needs it."""
        # The key changes only when noise is renewed, so the file is rewritten only then.
        key = self.private.secret_state()
        if self.run.is_writer and key != self._written_key:
            add_to_gitignore(self.run.folder, "SECRET-*")
            write_secret(self.run.folder, {**key, "preparation": self.preparation.state_dict()})
        self._written_key = key

    def _may_have_been_released(self, state: Mapping[str, Any]) -> int:
        """Returns the step below which the training loop may have released something.

        A ledger of version 0.2 may lack its last lines. Steps are reserved in blocks that end where the next checkpoint is
        due, so its newest checkpoint, whole or not, bounds what they may have said.
        """
        if self.write_ahead_ledger.is_complete:
            return self.write_ahead_ledger.released_below
        # The larger spacing of then and now bounds the block that the lost lines may have reserved.
        every = max(self.job.checkpoint_every, state["settings"]["options"].get("checkpoint_every") or 1)
        newest = int(directory.list_checkpoints(self.run.checkpoints)[0].name.rpartition("-")[2])
        return max(self.write_ahead_ledger.released_below, min(self.job.steps, (newest // every + 1) * every))

    def checkpoint_state(self) -> dict[str, Any]:
        """Returns everything that the training loop needs to go on, but for the noise key, which is in a file of its
        own.
        """
        return {
            "private": self.private.state_dict(),
            "model": dict(self.model.state_dict()),
            "average": None if self.average is None else self.average.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "prepared": self.is_prepared,
            "rows": [asdict(row) for row in self.rows],
            "diagnosis": self.diagnosis.state_dict(),
            "best": None if self.best is None else self.best.state_dict(),
            "signal": self.signal.state_dict(),
            "seconds": self.elapsed_seconds(),
            "data": self.job.data.digest(self.private.secret_state()["root"]),
            "resolved": self.job.resolved_table(),
            "settings": {name: dict(table) for name, table in self.job.settings.table().items()},
            "lineage": self.write_ahead_ledger.lineage,
            "entered": self.write_ahead_ledger.position,
        }

    def _find_replay_obstacle(self, state: Any) -> str:
        """Returns why the training loop would not repeat the steps after a checkpoint bit by bit; empty if it would."""
        # Some settings make it another run, and others make other sums: the first are refused, the second forbid a
        # replay.
        forbidden_changes, adjusted = find_changes(state["settings"], self.job.settings.table())
        if forbidden_changes:
            raise ValueError(
                f"{self.run.folder}: config.toml is not what the run began with ({forbidden_changes}); put it back"
            )
        # A checkpoint from before a turn cannot replay what was released after it.
        branched = (
            ""
            if state["lineage"] == self.write_ahead_ledger.lineage
            else "other steps were released after this checkpoint"
        )
        return ", ".join(
            filter(
                None,
                (
                    describe_difference(self.write_ahead_ledger.environment, self.run.current_environment()),
                    find_nondeterminism(device_of(self.model)),
                    adjusted,
                    branched,
                ),
            )
        )

    def load_checkpoint(self, state: Any, secret: Mapping[str, Any] | None) -> bool:
        """Loads a checkpoint into the training loop; returns False where its noise key is gone, so that nothing can be
        replayed from it.

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
        if _facts_of(state["resolved"]) != _facts_of(self.job.resolved_table()):
            raise ValueError(f"{self.run.folder}: config.toml is not what the run began with; put it back")
        # Everything is restored in an order in which the watch over the parameters begins last.
        self.ledger = Ledger()
        self.private = self.job.create_private(None, self.ledger, self.run.ranks)
        self._declare_validation()
        if self.best is not None and state.get("best") is not None:
            self.best.load_state_dict(state["best"])
        self.signal = SignalToNoise(self.private)
        if "signal" in state:  # checkpoints of 0.3.0 have none: it begins anew
            self.signal.load_state_dict(state["signal"])
        # What was recorded since the last line of metrics goes on with it.
        self.diagnosis.load_state_dict(state["diagnosis"])
        self.model.load_state_dict(state["model"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        _load_optimizer_state(self.optimizer, state["optimizer"])
        # With the key the noise goes on where it stood; without it `Private` takes a new one.
        replay = None if secret is None else replace(REPLAY_ENTERED, secret=secret)
        self.private.continue_logged_run(state["private"], replay=replay)  # from here the parameters are watched
        self.is_prepared = state["prepared"]
        self.preparation = new_rng() if secret is None else Rng.replay(secret["preparation"])
        self._written_key = {name: value for name, value in (secret or {}).items() if name != "preparation"}
        self.rows = [Row(**row) for row in state["rows"]]
        self.seconds = float(state["seconds"])
        return secret is not None

    def prepare(self) -> None:
        """Carries out, once, the preparation that is released before the first step of the training loop."""
        if not self.is_prepared:
            carry_out_preparation(
                self.job.settings.recipe, self.job.data.train, self.model, self.ledger, self.preparation
            )
        self.is_prepared = True

    def _charge_and_skip(self, steps_at_risk: int, why: str) -> None:
        """Charges the steps that the training loop may have released before it was interrupted, and skips them."""
        self.view.say(
            f"{steps_at_risk} steps after the checkpoint are charged and left out: a replay would not be the same ({why})"
        )
        # Drawing charges a lot. Nothing is summed, so no noise of these steps meets other numbers.
        for _ in range(min(steps_at_risk, self.job.steps - self.private.steps)):
            next(self._open_draws())
        self.write_ahead_ledger.branch()
        self.save()

    def take_step(self) -> None:
        """Takes one step of the training loop: draws a lot, releases its gradient and calls the optimizer."""
        # A draw is charged when it is made. None is left only if the run has diverged.
        lot = next(self._open_draws(), None)
        if lot is None:
            raise TrainingNotFinite(f"{self.private.diverged}; lower learning_rate in config.toml")
        # The learning rate is a public function of the step.
        rate = self.job.problem.learning_rate(lot.step)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        # Diagnostics were listed in the claim before the first step.
        self.diagnosis.record_lot(self.private, lot)
        losses = self.private.backward(lot)
        if self.private.diverged is not None:
            raise TrainingNotFinite(f"{self.private.diverged}; lower learning_rate in config.toml")
        self.diagnosis.record_release(self.private)
        # The released gradient tells how much of a step is signal; a run that only walks at random is told so, once.
        self.signal.update()
        if self.signal.finds_random_walk():
            self.view.say(self.signal.warning())
        self.optimizer.step()
        if self.average is not None:
            self.average.update()
        # Parameters are released values, so looking at them costs nothing.
        if not _are_all_finite(self.model):
            raise TrainingNotFinite(f"step {self.private.steps}: the parameters are no longer finite; {_LOWER}")
        self._enter_parameters()
        if self.job.settings.options.show_private:
            self.view.show_private("training loss", float(losses.map(torch.mean).disclose(TRAINING_LOSS)))

    def _open_draws(self) -> Iterator[Lot]:
        """Returns the iterator over the lots that the training loop has still to draw; it is created on first use."""
        if self._lots is None:
            self._lots = self.private.draws(
                self.job.data.train,
                self.job.sampler,
                self.job.steps - self.private.steps,
                expected_batch=self.job.settings.options.expected_batch,
                physical_batch=self.job.physical_batch,
                unit=self.job.create_unit(),
            )
        return self._lots

    def _evaluate(self) -> None:
        """Evaluates the model between steps of the training loop and reports the result together with the
        claim so far.
        """
        with self.use_tested_model() as model:
            test_result, further_fields = evaluate_run(self.job, self.ledger, model)
            further_fields |= self._validate(model)
            further_fields |= self.diagnosis.take_recorded() | {"signal_to_noise": self.signal.of_step()}
            if self.job.settings.options.trace:
                self.run.write_trace(self.private.steps, model)
        # The test set is public, so a loss that is not finite may stop the run.
        step = self.private.steps
        if not math.isfinite(test_result.loss):
            raise TrainingNotFinite(
                f"step {step}: the test loss is {test_result.loss}; lower learning_rate in config.toml"
            )
        # The row says the learning rate of the step just taken.
        rate, delta = self.job.problem.learning_rate(max(0, step - 1)), self.job.settings.recipe.delta
        epoch = step / self.job.steps_per_epoch
        # Every line carries the ε of what was done up to it, or none.
        claim = self.claim()
        epsilon = claim.epsilon if isinstance(claim, Guarantee) else None
        self._write_claim_if_void()
        if (accuracy := further_fields.get("train_accuracy")) is not None:
            self.view.show_private("training accuracy", accuracy)
        row = Row(
            step,
            epoch,
            epsilon,
            delta,
            test_result.accuracy,
            test_result.loss,
            rate,
            self.elapsed_seconds(),
            **further_fields,
        )
        self.rows.append(row)
        self.run.append_row(row)
        self.view.show_evaluation(row)

    def _validate(self, model: nn.Module) -> dict[str, Any]:
        """Evaluates the training loop's model on the public validation records, keeps it if it is the best so far, and
        returns the field of its `Row`; nothing without such records.
        """
        if self.best is None or self.job.data.validation is None:
            return {}
        loss = evaluate(model, self.job.data.validation, self.job.problem.loss_fn, None).loss
        self.best.update(model, loss, self.private.steps)
        return {"validation_loss": loss}

    def _epsilon_so_far(self) -> float | None:
        """Returns ε so far, or None if there is no guarantee."""
        return self._live_epsilon(self.private.event, self.ledger.coordinates)

    def _enter_parameters(self) -> None:
        """Enters the parameters in the write-ahead ledger; voids the claim if a replay came to other ones."""
        if not self.write_ahead_ledger.enter_parameters(self.private.steps, parameter_digest(self.model)):
            self.ledger.void(REPLAY)

    def _write_claim_if_void(self) -> None:
        """Replaces the planned claim as soon as the training loop has lost its guarantee, because the process may be
        killed before the end.
        """
        if self.private.steps and isinstance(self.private.event, NonPrivate):
            self.run.write_privacy(self.claim(), RUNNING, self.private.steps, self.job.settings.budget)

    def _reserve_steps(self, environment: dict[str, Any] | None = None) -> None:
        """Enters the steps up to the next checkpoint, and waits until they are on the disk."""
        self.write_ahead_ledger.reserve(self._next_checkpoint_step(), environment)
        self.run.run_on_first(lambda: None)  # the others wait until it is on the first rank's disk

    def _next_checkpoint_step(self) -> int:
        """Returns the step of the training loop at which the next checkpoint is due."""
        # Blocks end where checkpoints are due, so after a crash no more than one block is replayed or charged.
        every = self.job.checkpoint_every
        return min(self.job.steps, (self.private.steps // every + 1) * every)

    def elapsed_seconds(self) -> float:
        """Returns the seconds of training, including those of earlier processes."""
        return self.seconds + time.perf_counter() - self._started_at


def _are_all_finite(model: nn.Module) -> bool:
    """Returns whether every parameter of the training loop's model is finite; on a device the host waits once."""
    if device_of(model).type == "cpu":
        return all(bool(torch.isfinite(p).all()) for p in model.parameters())
    return bool(torch.stack([torch.isfinite(p).all() for p in model.parameters()]).all())


def read_key(folder: Path) -> dict[str, Any] | None:
    """Returns the content of the secret file from which a training loop resumes, or None if it is gone or cannot be
    read.
    """
    try:
        return read_secret(folder)
    except (OSError, ValueError):
        return None


def _key_of(state: Mapping[str, Any], secret: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Returns the noise key with which the training loop goes on from a checkpoint: the one in the run's secret file if
    it is that checkpoint's, else None.

    Checkpoints of version 0.2 hold their key themselves.
    """
    # A state of 0.2 has its streams in the clear. Later ones are encrypted, so decrypting shows whether the key is
    # theirs.
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


def _facts_of(resolved: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what the training loop must find again of the table [resolved] when it goes on.

    Left out are facts that are None, which earlier versions did not write, and sampler and query in words, which may be
    worded otherwise by another version: they follow from the recipe, the parameters and the noise, which are compared.
    """
    return {name: value for name, value in resolved.items() if value is not None and name not in ("sampler", "query")}


def _load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads the saved moments of the training loop's optimizer but keeps its options as config.toml has them now."""
    # torch would restore the options as well, and so undo a change of the learning rate in config.toml.
    options = [{name: group[name] for name in group if name != "params"} for group in optimizer.param_groups]
    optimizer.load_state_dict(state)
    for group, now in zip(optimizer.param_groups, options, strict=True):
        group.update(now)
