"""The replay audit: runs randomly chosen steps of a finished run again and takes them apart.

A run's key, data and settings give every step again, bit by bit. At a chosen step

    draw      the lot's records are those that the sampler gives for the run's key and the step's number
    sum       what came to the release is Σ w(‖g_i‖) g_i over exactly those records, by autograd, one at a time, in
        float64
    noise     what left it is that sum plus multiplier × bound × the stream's own values, over the public number
    digest    the parameters after the step are those that the ledger had entered, as after every step on the way
    event     the claim charges as many draws as the ledger has steps, at that multiplier
    phase     where a phase is charged as a whole, it is the one that the settings say; and over all of its lots, drawn
        again from the key, no record comes back earlier than it was charged for

This is no statistical test: a step is right or it is not. n steps are checked, so a run of which a share f is bad
passes with probability (1 − f)ⁿ. What cannot be seen: what was done outside the run, and bits that no released value
depends on.

Privacy: an auditor needs the data and the run directory with its checkpoints, all of which are as secret as the data.
The printed results are counts, and how far apart sums were that should be equal.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.app.audits.step_parts import (
    PhaseStep,
    RecordedRelease,
    find_early_return,
    flat_bound,
    measure_noise_error,
    measure_sum_error,
    redraw_lot,
    redraw_phase,
)
from sordino.app.report.evidence import read as read_evidence
from sordino.app.runs import directory, write_ahead
from sordino.app.runs.directory import CONFIG, Checkpoint, Run
from sordino.app.runs.job import assemble_job
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.settings import read_config
from sordino.app.runs.training_loop import Training, read_key
from sordino.app.runs.write_ahead import parameter_digest
from sordino.environment import describe_difference
from sordino.events import CyclicPoisson, FixedOrder, event_counts
from sordino.release.correlated_noise import find_correlated_noise
from sordino.release.noise import Noise
from sordino.release.release import tap_releases
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import Grads
from sordino.rng.streams import Rng

LARGEST_SUM_ERROR = 1e-3
"""Of the bound: how far a sum may be from the oracle's. One record too many, or too few, moves it by up to the bound."""
LARGEST_NOISE_ERROR = 1e-5
"""Relative."""
LARGEST_CORRELATED_ERROR = 1e-4
"""Relative, of correlated noise, which a run adds up in float32 over all steps of a phase."""


@dataclass
class ReplayResult:
    """What a replay found."""

    steps: int
    """Of the run."""
    checked: list[int] = field(default_factory=list)
    digests: int = 0
    """Steps whose parameters were compared with the ledger's."""
    wrong: list[str] = field(default_factory=list)
    not_tried: list[str] = field(default_factory=list)
    environment: str = ""
    """What is not as it was, so that bits may differ."""
    chain: str = ""
    farthest_sum: float = 0.0
    farthest_noise: float = 0.0
    lots_redrawn: int = 0
    """Lots of a phase that was charged as a whole, in which every return of a record was looked for."""

    @property
    def passed(self) -> bool:
        """Whether every step that was checked is right."""
        return not self.wrong and bool(self.checked)

    def probability_of_passing(self, share: float) -> float:
        """Returns the probability that a run with this share of bad steps would have passed the replay audit.

        >>> round(ReplayResult(100, checked=list(range(20))).probability_of_passing(0.1), 3)
        0.122
        """
        return float((1 - share) ** len(self.checked))

    def __str__(self) -> str:
        """Returns the result in words, with the power of the check."""
        # The power stands beside the result, because passing few steps says little.
        n = len(self.checked)
        head = "as entered" if self.passed else f"{len(self.wrong)} found"
        lines = [
            f"replay: {head}; {n} of {self.steps} steps taken apart, {self.digests} digests compared",
            f"  sums         at most {self.farthest_sum:.1e} bounds from autograd's, one record at a time",
            f"  noise        at most {self.farthest_noise:.1e} of itself from the key's",
            f"  power        a run with a share f of bad steps passes with probability (1 − f)^{n}: "
            f"{self.probability_of_passing(0.01):.3f} at 1 %, {self.probability_of_passing(0.1):.3f} at 10 %",
            f"  ledger       ends in {self.chain}",
        ]
        if self.lots_redrawn:
            lines.append(f"  phase        charged as a whole; {self.lots_redrawn} lots searched for early returns")
        lines += [f"  environment  {self.environment}: bits may differ for that reason"] if self.environment else []
        lines += [f"  FOUND        {what}" for what in self.wrong]
        lines += [f"  not tried    {what}" for what in self.not_tried]
        return "\n".join(lines)

    def table(self) -> dict[str, Any]:
        """Returns the result of a replay audit as JSON holds it."""
        return {
            "passed": self.passed,
            "run_steps": self.steps,
            "checked": len(self.checked),
            "digests": self.digests,
            "farthest_sum": self.farthest_sum,
            "farthest_noise": self.farthest_noise,
            "lots_redrawn": self.lots_redrawn,
            "chain": self.chain,
            "environment": self.environment,
            "found": self.wrong,
            "not_tried": self.not_tried,
        }


def audit_by_replay(
    folder: str | Path,
    steps: int = 20,
    *,
    choose: Sequence[int] | None = None,
    say: Callable[[str], None] | None = None,
) -> ReplayResult:
    """Carries out a replay audit of `steps` steps of a finished run, chosen by a fresh coin; `choose` names them
    instead, for tests.
    """
    # Replay needs the environment of the run: its threads, and the way ranks add up.
    run, report_progress = Run.open(Path(folder)), say or (lambda _: None)
    ledger_entries = write_ahead.read_entries(run.folder)
    run = run.as_begun(ledger_entries.environment)  # the sums of ranks are whole numbers, here too
    threads = ledger_entries.environment.get("threads")
    if isinstance(threads, int) and threads > 0:
        torch.set_num_threads(threads)
    # Steps can be replayed from any checkpoint of the last lineage.
    start_checkpoints = _read_start_checkpoints(run, ledger_entries.lineage)
    last = max(ledger_entries.digests, default=0)
    first = min(start_checkpoints)
    replayable_steps = [step for step in ledger_entries.digests if first < step <= last]
    if not replayable_steps:
        raise ValueError(f"{run.folder}: no step was entered after its first checkpoint; there is nothing to replay")
    # The steps are chosen now, so that nobody could prepare for them.
    coin = secrets.SystemRandom()
    chosen = sorted(coin.sample(replayable_steps, min(steps, len(replayable_steps))) if choose is None else choose)
    # What differs between the machines is part of the result: bits may then differ without a mistake.
    result = ReplayResult(
        last,
        chain=ledger_entries.chain,
        environment=describe_difference(dict(ledger_entries.environment), run.current_environment()),
    )
    if ledger_entries.first_broken_line is not None:
        result.wrong.append(
            f"ledger.jsonl:{ledger_entries.first_broken_line}: the line is not the one that was chained to those around it"
        )
    _check_charged_draws(run, last, ledger_entries.lineage, result)
    _StepReplayer(run, start_checkpoints, ledger_entries.digests, result, report_progress).check_steps(chosen)
    return result


def _read_start_checkpoints(run: Run, lineage: int) -> dict[int, Checkpoint]:
    """Returns the checkpoints that a replay audit can start from, by step: the undamaged ones of the last lineage."""
    # A checkpoint of an earlier lineage leads to steps that were released by another noise key.
    paths = [*directory.list_checkpoints(run.checkpoints), run.checkpoints / directory.START]
    by_step = {}
    for path in paths:
        try:
            checkpoint = directory.read_checkpoint(path)
        except directory.DamagedCheckpoint:
            continue
        if checkpoint.state["lineage"] == lineage:
            by_step[checkpoint.step] = checkpoint
    if not by_step:
        raise ValueError(f"{run.folder}: no whole checkpoint of its last lineage; nothing can be replayed")
    return by_step


def _check_charged_draws(run: Run, steps: int, lineage: int, result: ReplayResult) -> None:
    """Checks, for a replay audit, that the claim charges a draw for every step that was entered."""
    guarantee = read_evidence(run.folder).guarantee
    if guarantee is None or lineage:
        result.not_tried.append("event: there is no claim, or steps were left out")
        return
    # A claim that charges fewer draws than were entered would be too small. A phase that is charged as a whole has as
    # many draws as it was charged for, whether they were made or not.
    charged_draws = sum(
        count * (part.steps if isinstance(part, CyclicPoisson | FixedOrder) else 1)
        for part, count in event_counts(guarantee.event)
        if part.is_one_draw or part.is_whole_phase
    )
    if charged_draws and charged_draws != steps:
        result.wrong.append(f"event: the claim charges {charged_draws} draws, and {steps} steps were entered")
    elif not charged_draws:
        result.not_tried.append("event: lots of this sampler are not charged one by one")


class _StepReplayer:
    """Runs from checkpoint to checkpoint and takes the chosen steps apart."""

    def __init__(
        self,
        run: Run,
        start_checkpoints: dict[int, Checkpoint],
        digests: Any,
        result: ReplayResult,
        say: Callable[[str], None],
    ) -> None:
        config = read_config(run.folder / CONFIG)
        self._run, self._start_checkpoints, self._digests, self._result, self._say = (
            run,
            start_checkpoints,
            digests,
            result,
            say,
        )
        self._job = assemble_job(config.to_settings(), say, config.resolved)

    def check_steps(self, chosen: Sequence[int]) -> None:
        """Replays and checks the steps that a replay audit chose, in order, each from the nearest state before it."""
        training: Training | None = None
        is_phase_checked = False
        for step in chosen:
            # Steps are chosen in order, so one training goes on until a later checkpoint is nearer.
            nearest_start = max(start for start in self._start_checkpoints if start < step)
            if training is None or nearest_start > training.private.steps:
                training = self._restore_training(self._start_checkpoints[nearest_start])
            while training.private.steps < step - 1:
                training.take_step()
                self._compare_digest(training)
            self._check_step(training)
            self._compare_digest(training)
            if not is_phase_checked:
                self._check_phase(training)
                is_phase_checked = True
            self._result.checked.append(step)
            self._say(f"step {step}: {'as entered' if not self._result.wrong else self._result.wrong[-1]}")

    def _restore_training(self, checkpoint: Checkpoint) -> Training:
        """Returns the audited run, restored from a checkpoint for a replay; raises if its noise key is gone."""
        # The ledger of the audited run is only read: a replay must leave no trace in it.
        training = Training(self._job, self._run, _ReadOnlyLedger(), Silent())  # type: ignore[arg-type]  # enters nothing
        if not training.load_checkpoint(checkpoint.state, read_key(self._run.folder)):
            raise ValueError(
                f"{self._run.folder}: its noise key was erased when the run was finished, so nothing can be replayed.\n"
                "Train with --keep-key to have a run that can be audited; its secret file is then as secret as the data."
            )
        training.prepare()
        return training

    def _compare_digest(self, training: Training) -> None:
        """Compares the parameters that a replay audit came to with the digest that the ledger has for the same step."""
        step, entered_digest = training.private.steps, self._digests.get(training.private.steps)
        if entered_digest is not None:
            self._result.digests += 1
            if entered_digest != parameter_digest(training.model):
                self._result.wrong.append(f"step {step}: other parameters than those that were entered")

    def _check_step(self, training: Training) -> None:
        """Replays one step of the run in a replay audit and checks its draw, its sum and its noise by other means."""
        # The noise is compared with the stream as it stood before the step.
        private, releases = training.private, list[RecordedRelease]()
        noise_state = private.open_for_audit().noise_state
        lot_number = private.steps

        def record_release(value: Grads, sensitivity: Sensitivity | Unproven, noise: Noise) -> Grads | None:
            """Records a copy of what the replayed step of an audit releases and lets it pass unchanged."""
            copied = {name: tensor.detach().clone() for name, tensor in value.items()}
            releases.append(RecordedRelease(copied, sensitivity, noise))
            return None

        # Run the step and record what comes to the release.
        before = {name: tensor.detach().clone() for name, tensor in training.model.state_dict().items()}
        with tap_releases(record_release):
            training.take_step()
        step = private.steps
        if len(releases) != 1 or not isinstance(releases[0].sensitivity, Sensitivity):
            self._result.not_tried.append(
                f"step {step}: {len(releases)} releases on one lot; only its digest was compared"
            )
            return
        # The draw, from the key alone.
        indices = private.open_for_audit().records
        assert indices is not None
        redrawn_indices = redraw_lot(training, lot_number)
        if redrawn_indices is not None and not np.array_equal(redrawn_indices, indices):
            self._result.wrong.append(f"step {step}: other records than the key and the step's number give")
        # The sum, then the noise, each by a second implementation.
        self._check_sum(training, before, indices, releases[0], step)
        # Correlated noise is made of that of all earlier steps of its phase, by the strategy of the settings.
        correlated = find_correlated_noise(training.job.create_query())
        inside, phase_step = private.open_for_audit(), None
        if correlated is not None:
            assert inside.phase_number is not None, "correlated noise is released within a phase"
            phase_step = PhaseStep(correlated.strategy, inside.phase_number, inside.draw_position - 1)
        released_gradients = {name: p.grad for name, p in training.model.named_parameters() if p.grad is not None}
        relative_error = measure_noise_error(
            releases[0],
            released_gradients,
            Rng.replay(noise_state),
            multiplier=training.job.multiplier,
            bound=flat_bound(training),
            expected_batch=training.job.expected_batch,
            phase_step=phase_step,
        )
        self._result.farthest_noise = max(self._result.farthest_noise, relative_error)
        if relative_error > (LARGEST_NOISE_ERROR if correlated is None else LARGEST_CORRELATED_ERROR):
            self._result.wrong.append(
                f"step {step}: the noise is {relative_error:.2g} of itself away from multiplier × bound × key's"
            )

    def _check_phase(self, training: Training) -> None:
        """Checks, in a replay audit, what was charged for a phase as a whole: that it is the phase of the settings, and
        that over all of its lots, drawn again from the key, no record comes back earlier than it was charged for.
        """
        # Only phases have a separation that the price depends on; lots that are charged one by one have none.
        planned = [part for part, _ in event_counts(training.job.event()) if part.is_whole_phase]
        if not planned or training.private.open_for_audit().phase_number is None:
            return
        (phase,) = planned
        assert isinstance(phase, CyclicPoisson | FixedOrder)
        guarantee = read_evidence(self._run.folder).guarantee
        if guarantee is not None:
            # A run whose key was changed on the way has a second phase, which the settings do not know.
            charged = [part for part, _ in event_counts(guarantee.event) if part.is_whole_phase]
            if phase not in charged:
                self._result.wrong.append(f"event: the claim charges {charged}, and the settings say {phase}")
        separation = phase.groups if isinstance(phase, CyclicPoisson) else phase.separation
        early = find_early_return(redraw_phase(training, phase.steps), separation)
        if early is not None:
            self._result.wrong.append(
                f"phase: a record is in the lots of steps {early[0] + 1} and {early[1] + 1}, and {separation} steps "
                "apart was charged for"
            )
        self._result.lots_redrawn = phase.steps

    def _check_sum(
        self, training: Training, before: dict[str, Tensor], indices: Any, release: RecordedRelease, step: int
    ) -> None:
        """Compares the sum of a step in a replay audit with that of autograd, at the parameters before the step."""
        # The oracle needs the parameters before the step; afterwards the model goes on from those after it.
        after = {name: tensor.detach().clone() for name, tensor in training.model.state_dict().items()}
        with training.private.post_processing("the parameters before a step, for its audit, and those after it again"):
            training.model.load_state_dict(before)
            try:
                # None means that the method is not plain clipping, of which the audit knows no second way.
                error_in_bounds = measure_sum_error(training, indices, release)
            finally:
                training.model.load_state_dict(after)
        if error_in_bounds is None:
            self._result.not_tried.append(f"step {step}: the rule of this method is not written out here")
            return
        self._result.farthest_sum = max(self._result.farthest_sum, error_in_bounds)
        if error_in_bounds > LARGEST_SUM_ERROR:
            self._result.wrong.append(
                f"step {step}: the sum is {error_in_bounds:.2g} bounds away from that of the drawn records"
            )


class _ReadOnlyLedger:
    """Stands in for the ledger file: a replay enters nothing and compares for itself."""

    lineage = 0

    def enter_parameters(self, step: int, parameters: str) -> bool:
        """Returns True without entering anything."""
        return True
