"""The replay audit: runs randomly chosen steps of a finished run again and takes them apart.

A run's key, data and settings give every step again, bit by bit. At a chosen step

    draw      the lot's records are those that the sampler gives for the run's key and the step's number
    sum       what came to the release is Σ w(‖g_i‖) g_i over exactly those records, by autograd, one at a time, in
        float64
    noise     what left it is that sum plus multiplier × bound × the stream's own values, over the public number
    digest    the parameters after the step are those that the ledger had entered, as after every step on the way
    event     the claim charges as many draws as the ledger has steps, at that multiplier

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

from sordino.app.audits.step_parts import Taken, draw_again, flat_bound, noise_again, sum_again
from sordino.app.report.evidence import read as read_evidence
from sordino.app.runs import run_checkpoint, write_ahead
from sordino.app.runs.directory import CONFIG, Run
from sordino.app.runs.distributed_files import Crew
from sordino.app.runs.job import assemble
from sordino.app.runs.parameter_digest import digest
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.run_checkpoint import Checkpoint
from sordino.app.runs.settings import read
from sordino.app.runs.training_loop import Training, read_key
from sordino.environment import difference, here
from sordino.events import Event, FixedSize, Poisson, Repeat, Together
from sordino.release.noise import Noise
from sordino.release.release import tapped
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.release.vectors import Grads
from sordino.rng.streams import Rng

SUM = 1e-3
"""Of the bound: how far a sum may be from the oracle's. One record too many, or too few, moves it by up to the bound."""
NOISE = 1e-5
"""Relative."""


@dataclass
class Replayed:
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

    @property
    def passed(self) -> bool:
        """Whether every step that was checked is right."""
        return not self.wrong and bool(self.checked)

    def passes_with(self, share: float) -> float:
        """Returns the probability that a run with this share of bad steps would have passed.

        >>> round(Replayed(100, checked=list(range(20))).passes_with(0.1), 3)
        0.122
        """
        return float((1 - share) ** len(self.checked))

    def __str__(self) -> str:
        """Returns the result in words, with the power of the check."""
        n = len(self.checked)
        head = "as entered" if self.passed else f"{len(self.wrong)} found"
        lines = [
            f"replay: {head}; {n} of {self.steps} steps taken apart, {self.digests} digests compared",
            f"  sums         at most {self.farthest_sum:.1e} bounds from autograd's, one record at a time",
            f"  noise        at most {self.farthest_noise:.1e} of itself from the key's",
            f"  power        a run with a share f of bad steps passes with probability (1 − f)^{n}: "
            f"{self.passes_with(0.01):.3f} at 1 %, {self.passes_with(0.1):.3f} at 10 %",
            f"  ledger       ends in {self.chain}",
        ]
        lines += [f"  environment  {self.environment}: bits may differ for that reason"] if self.environment else []
        lines += [f"  FOUND        {what}" for what in self.wrong]
        lines += [f"  not tried    {what}" for what in self.not_tried]
        return "\n".join(lines)

    def table(self) -> dict[str, Any]:
        """Returns the result as JSON holds it."""
        return {
            "passed": self.passed,
            "run_steps": self.steps,
            "checked": len(self.checked),
            "digests": self.digests,
            "farthest_sum": self.farthest_sum,
            "farthest_noise": self.farthest_noise,
            "chain": self.chain,
            "environment": self.environment,
            "found": self.wrong,
            "not_tried": self.not_tried,
        }


def replay(
    folder: str | Path,
    steps: int = 20,
    *,
    choose: Sequence[int] | None = None,
    say: Callable[[str], None] | None = None,
) -> Replayed:
    """Checks `steps` steps of a run, chosen by a fresh coin; `choose` names them instead, for tests."""
    # Replay needs the environment of the run: its threads, and the way ranks add up.
    run, tell = Run.open(Path(folder)), say or (lambda _: None)
    book = write_ahead.entered(run.folder)
    crew = Crew().going_on(dict(book.environment))  # the sums of ranks are whole numbers, here too
    threads = book.environment.get("threads")
    if isinstance(threads, int) and threads > 0:
        torch.set_num_threads(threads)
    # Steps can be replayed from any checkpoint of the last lineage.
    starts = _starts(run, book.lineage)
    last = max(book.digests, default=0)
    first = min(starts)
    open_steps = [step for step in book.digests if first < step <= last]
    if not open_steps:
        raise ValueError(f"{run.folder}: no step was entered after its first checkpoint; there is nothing to replay")
    # The steps are chosen now, so that nobody could prepare for them.
    coin = secrets.SystemRandom()
    chosen = sorted(coin.sample(open_steps, min(steps, len(open_steps))) if choose is None else choose)
    found = Replayed(last, chain=book.chain, environment=difference(dict(book.environment), here(crew.environment)))
    if book.broken is not None:
        found.wrong.append(f"ledger.jsonl:{book.broken}: the line is not the one that was chained to those around it")
    _event(run, last, book.lineage, found)
    _Walk(run, starts, book.digests, found, tell, crew).over(chosen)
    return found


def _starts(run: Run, lineage: int) -> dict[int, Checkpoint]:
    """Returns the undamaged checkpoints of the last lineage, by step."""
    paths = [*run_checkpoint.found(run.checkpoints), run.checkpoints / run_checkpoint.START]
    found = {}
    for path in paths:
        try:
            one = run_checkpoint.read(path)
        except run_checkpoint.Damaged:
            continue
        if one.state["lineage"] == lineage:
            found[one.step] = one
    if not found:
        raise ValueError(f"{run.folder}: no whole checkpoint of its last lineage; nothing can be replayed")
    return found


def _event(run: Run, steps: int, lineage: int, found: Replayed) -> None:
    """Checks that the claim charges a draw for every step that was entered."""
    guarantee = read_evidence(run.folder).guarantee
    if guarantee is None or lineage:
        found.not_tried.append("event: there is no claim, or steps were left out")
        return
    counted = sum(count for part, count in _parts(guarantee.event) if isinstance(part, Poisson | FixedSize))
    if counted and counted != steps:
        found.wrong.append(f"event: the claim charges {counted} draws, and {steps} steps were entered")
    elif not counted:
        found.not_tried.append("event: lots of this sampler are not charged one by one")


def _parts(event: Event) -> list[tuple[Event, int]]:
    """Returns the parts of an event with their counts."""
    if isinstance(event, Together):
        return [pair for part in event.events for pair in _parts(part)]
    if isinstance(event, Repeat):
        return [(part, count * event.count) for part, count in _parts(event.event)]
    return [(event, 1)]


class _Walk:
    """Runs from checkpoint to checkpoint and takes the chosen steps apart."""

    def __init__(
        self,
        run: Run,
        starts: dict[int, Checkpoint],
        digests: Any,
        found: Replayed,
        say: Callable[[str], None],
        crew: Crew,
    ) -> None:
        self._crew = crew
        config = read(run.folder / CONFIG)
        self._run, self._starts, self._digests, self._found, self._say = run, starts, digests, found, say
        self._job = assemble(config.settings(), say, config.resolved)

    def over(self, chosen: Sequence[int]) -> None:
        """Checks the chosen steps in order, each from the nearest state before it."""
        training: Training | None = None
        for step in chosen:
            near = max(start for start in self._starts if start < step)
            if training is None or near > training.private.steps:
                training = self._from(self._starts[near])
            while training.private.steps < step - 1:
                training._step()
                self._compare(training)
            self._taken_apart(training)
            self._compare(training)
            self._found.checked.append(step)
            self._say(f"step {step}: {'as entered' if not self._found.wrong else self._found.wrong[-1]}")

    def _from(self, start: Checkpoint) -> Training:
        """Returns a run restored from a checkpoint; raises if its noise key is gone."""
        training = Training(self._job, self._run, _ReadOnly(), Silent(), self._crew)  # type: ignore[arg-type]  # enters nothing
        if not training._load(start.state, read_key(self._run.folder)):
            raise ValueError(
                f"{self._run.folder}: its noise key was erased when the run was finished, so nothing can be replayed.\n"
                "Train with --keep-key to have a run that can be audited; its secret file is then as secret as the data."
            )
        training._prepare()
        return training

    def _compare(self, training: Training) -> None:
        """Compares the parameters with the digest that the ledger has for this step."""
        step, known = training.private.steps, self._digests.get(training.private.steps)
        if known is not None:
            self._found.digests += 1
            if known != digest(training.model):
                self._found.wrong.append(f"step {step}: other parameters than those that were entered")

    def _taken_apart(self, training: Training) -> None:
        """Takes one step and checks its draw, its sum and its noise by other means."""
        private, seen = training.private, list[Taken]()
        stream = private._run.noise.state_dict()
        number = private.steps

        def tap(value: Grads, sensitivity: Sensitivity | Unproven, noise: Noise) -> Grads | None:
            """Records a copy of what is released and lets it pass unchanged."""
            copied = {name: tensor.detach().clone() for name, tensor in value.items()}
            seen.append(Taken(copied, sensitivity, noise))
            return None

        # Run the step and record what comes to the release.
        before = {name: tensor.detach().clone() for name, tensor in training.model.state_dict().items()}
        with tapped(tap):
            training._step()
        step = private.steps
        if len(seen) != 1 or not isinstance(seen[0].sensitivity, Sensitivity):
            self._found.not_tried.append(f"step {step}: {len(seen)} releases on one lot; only its digest was compared")
            return
        # The draw, from the key alone.
        indices = private._records
        assert indices is not None
        again = draw_again(training, number)
        if again is not None and not np.array_equal(again, indices):
            self._found.wrong.append(f"step {step}: other records than the key and the step's number give")
        # The sum, then the noise, each by a second implementation.
        self._sum(training, before, indices, seen[0], step)
        written = {name: p.grad for name, p in training.model.named_parameters() if p.grad is not None}
        far = noise_again(
            seen[0],
            written,
            Rng.replay(stream),
            multiplier=training.job.multiplier,
            bound=flat_bound(training),
            expected_batch=training.job.expected_batch,
        )
        self._found.farthest_noise = max(self._found.farthest_noise, far)
        if far > NOISE:
            self._found.wrong.append(
                f"step {step}: the noise is {far:.2g} of itself away from multiplier × bound × key's"
            )

    def _sum(self, training: Training, before: dict[str, Tensor], indices: Any, seen: Taken, step: int) -> None:
        """Compares the sum of a step with that of autograd, at the parameters before the step."""
        after = {name: tensor.detach().clone() for name, tensor in training.model.state_dict().items()}
        training.model.load_state_dict(before)
        try:
            far = sum_again(training, indices, seen)
        finally:
            training.model.load_state_dict(after)
            training.private._checks.tripwire.trust()  # put back to the last bit
        if far is None:
            self._found.not_tried.append(f"step {step}: the rule of this method is not written out here")
            return
        self._found.farthest_sum = max(self._found.farthest_sum, far)
        if far > SUM:
            self._found.wrong.append(f"step {step}: the sum is {far:.2g} bounds away from that of the drawn records")


class _ReadOnly:
    """Stands in for the ledger file: a replay enters nothing and compares for itself."""

    lineage = 0

    def note(self, step: int, parameters: str) -> bool:
        """Returns True without entering anything."""
        return True
