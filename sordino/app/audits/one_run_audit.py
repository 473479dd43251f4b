"""The one-run audit: trains once with canaries included by fair coins, and guesses the coins.

Steinke, Nasr & Jagielski 2023; Mahloujifar, Melis & Chaudhuri 2024; canaries as in `canaries.py`.

    white box   every released gradient is seen: a canary's score is Σ_t ⟨released_t, its own clipped gradient⟩
    black box   the final network is seen: a canary's score is how far its loss fell

Privacy: none is promised by a small number. A lower bound above the claim shows that the claim is false, but for the chance
of an error that is told with it; a lower bound below it shows nothing. What is trained here is a copy, with canaries, that
must not be given away in the run's place.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sordino.accounting.tradeoff import tradeoff
from sordino.app.runs.job import Job
from sordino.app.runs.problem import build
from sordino.auditing import guesses
from sordino.auditing.bounds import one_run, one_run_tradeoff, tradeoff_tests
from sordino.auditing.bounds.tradeoff_tests import Louder
from sordino.auditing.canaries import KINDS, Beside, Canaries, Kind, beside_loss, canaries
from sordino.events import Event
from sordino.ledger.claims import Guarantee, NoGuarantee
from sordino.ledger.ledger import Ledger
from sordino.per_sample.protocol import LossFn
from sordino.private import Private
from sordino.queries.noisy_sum import Query
from sordino.rng.streams import Rng

ERROR = 0.05
LOOKS = 40
"""Steps at which the gradients of input canaries are computed, spread over the run."""


@dataclass(frozen=True)
class Measured:
    """What one kind of canary showed, by one kind of access."""

    kind: str
    access: str
    canaries: int
    guesses: int
    right: int
    lower: float
    """ε at δ, (ε, δ) form, 95 %."""
    lower_own: float
    """ε at δ, if the run is its own event with some other amount of noise, 95 %."""
    chance: float
    """The largest probability of so many right guesses for a run with the claimed curve."""
    estimate: float
    """Of the shift μ between canaries in and out, in deviations: an estimate, no bound."""

    def contradicts(self, error: float = ERROR) -> bool:
        """Returns whether the claim is false, except with probability `error`."""
        return self.chance <= error


@dataclass(frozen=True)
class Audited:
    """The claim, and what was measured beside it."""

    epsilon: float
    delta: float
    mu: float
    steps: int
    measured: tuple[Measured, ...] = field(default_factory=tuple)

    def __str__(self) -> str:
        """Returns the result in words: each measurement, and what it does not show."""
        lines = [f"one-run audit of a copy with canaries: claimed ε = {self.epsilon:.3f} at δ = {self.delta:g}"]
        for m in self.measured:
            lines.append(
                f"  {m.kind} canaries, {m.access}: {m.right} of {m.guesses} guesses right ({m.canaries} canaries); "
                f"ε ≥ {m.lower_own:.3f} by the run's own curve, ε ≥ {m.lower:.3f} by (ε, δ), each at 95 %"
            )
            if m.contradicts():
                lines.append(
                    f"    CONTRADICTED  a run with the claimed curve does so with a chance of {m.chance:.2g} at most"
                )
            lines.append(f"    estimate, no bound: canaries in and out lie {m.estimate:.2f} deviations apart")
        lines.append("  a lower bound below the claim shows nothing: it is no proof that the claim holds")
        return "\n".join(lines)

    @property
    def passed(self) -> bool:
        """Whether nothing contradicts the claim; the probability of an error is split over all measurements."""
        return not any(m.contradicts(ERROR / len(self.measured)) for m in self.measured)

    def table(self) -> dict[str, Any]:
        """Returns the result as JSON holds it."""
        return {
            "passed": self.passed,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "mu": self.mu,
            "steps": self.steps,
            "measured": [vars(m) for m in self.measured],
        }


@dataclass(frozen=True, eq=False)
class Claimed:
    """What the run claims, and the curves with which measurements are compared; created once for many runs."""

    event: Event
    epsilon: float
    delta: float
    mu: float
    own: tradeoff_tests.Inverse
    family: Louder

    @staticmethod
    def of(event: Event, epsilon: float, delta: float) -> Claimed:
        """Creates it from the run's event."""
        curve = tradeoff(event)
        return Claimed(event, epsilon, delta, curve.mu, tradeoff_tests.of(curve), Louder(event))


def one_training(
    job: Job,
    each: int = 500,
    kinds: tuple[Kind, ...] = KINDS,
    *,
    claimed: Claimed | None = None,
    query: Query | None = None,
    seed: int | None = None,
    looks: int = LOOKS,
    say: Callable[[str], None] | None = None,
) -> Audited:
    """Trains the job once with canaries, `each` of every kind, and measures what they show.

    `query` replaces the job's own query, for tests.
    """
    # Canaries are drawn by fair coins; the network gets a number for each gradient canary.
    tell = say or (lambda _: None)
    rng = Rng.from_entropy() if seed is None else Rng.from_seed(seed)
    prepared = job.data.prepared
    some = canaries(kinds, each, prepared.test, prepared.classes, rng.child("canaries"))
    problem = build(job.settings.recipe, prepared, job.settings.options.init_seed)
    model = Beside(problem.model, each)
    before = copy.deepcopy(model)
    train = some.dataset(prepared.train)
    asked, loss_fn = query or job.query(), beside_loss(problem.loss_fn)
    private = Private(model, loss_fn, asked, penalty=job.penalty(), backend=job.backend(), seed=seed, ledger=Ledger())
    optimizer = problem.optimizer
    optimizer.add_param_group({"params": list(model.numbers.parameters())})
    # Train as the run does, and score every canary against each released gradient.
    white = np.zeros(len(some.kind))
    every = max(1, job.steps // looks)
    inputs = np.concatenate([some.of(kind) for kind in kinds if kind != "gradient"] or [np.zeros(0, dtype=np.int64)])
    expected = job.expected_batch
    for lot in private.draws(train, job.sampler, job.steps, expected_batch=expected, physical_batch=job.physical_batch):
        for group in optimizer.param_groups:
            group["lr"] = problem.learning_rate(lot.step)
        private.backward(lot)
        own = model.numbers.weight.grad
        if "gradient" in kinds and own is not None:
            white[some.of("gradient")] += own.detach().reshape(-1)[:each].double().numpy()
        if len(inputs) and lot.step % every == 0:
            white[inputs] += _along(private, model, loss_fn, some, inputs, job.settings.recipe.bound)
        optimizer.step()
        if (lot.step + 1) % max(1, job.steps // 4) == 0:
            tell(f"step {lot.step + 1} of {job.steps}")
    # Compare the guesses with what the claim allows.
    basis = claimed or _claimed(private, job)
    black = _losses(before, loss_fn, some) - _losses(model, loss_fn, some)
    measured = []
    for kind in kinds:
        where = some.of(kind)
        measured.append(_measured(kind, "white box", white[where], some.inside[where], basis))
        if kind != "gradient":
            measured.append(_measured(kind, "black box", black[where], some.inside[where], basis))
    return Audited(basis.epsilon, basis.delta, basis.mu, job.steps, tuple(measured))


def _claimed(private: Private, job: Job) -> Claimed:
    """Returns the claim of the copy with its curves; raises if there is no guarantee."""
    said = private.claim(job.settings.recipe.delta)
    if isinstance(said, NoGuarantee):
        raise ValueError(f"{said}; there is no claim to measure anything beside")
    assert isinstance(said, Guarantee)
    return Claimed.of(said.event, said.epsilon, said.delta)


def _along(
    private: Private, model: nn.Module, loss_fn: LossFn, some: Canaries, where: NDArray[np.int64], bound: float
) -> NDArray[np.float64]:
    """Returns ⟨released gradient, clipped gradient of the canary⟩ for each canary."""
    grads = {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
    found = []
    for start in range(0, len(where), 250):
        chosen = torch.from_numpy(where[start : start + 250])
        part = private._backend.per_sample(model, loss_fn, (some.x[chosen], some.y[chosen], some.number[chosen]))
        norms = part.norms().total().double()
        found.append(part.dot(grads).double().sum(dim=1) * torch.clamp(bound / (norms + 1e-12), max=1.0))
    return torch.cat(found).detach().numpy()


@torch.no_grad()
def _losses(model: nn.Module, loss_fn: LossFn, some: Canaries) -> NDArray[np.float64]:
    """Returns the losses of all canaries, in evaluation mode."""
    training, _ = model.training, model.eval()
    try:
        return loss_fn(model, some.x, some.y, some.number).double().numpy()
    finally:
        model.train(training)


def _measured(
    kind: str, access: str, scores: NDArray[np.float64], inside: NDArray[np.bool_], claimed: Claimed
) -> Measured:
    """Counts the correct guesses for one kind of canary and turns them into lower bounds on ε."""
    m = len(scores)
    # The number of guesses is fixed by the claim alone, before the coins are looked at.
    each = guesses.best(m, round(claimed.mu, 3))
    count = guesses.right(scores, inside, each)
    spread = (scores[inside].std() + scores[~inside].std()) / 2
    shift = float((scores[inside].mean() - scores[~inside].mean()) / spread) if spread > 0 else 0.0
    return Measured(
        kind,
        access,
        m,
        2 * each,
        count,
        one_run.epsilon(m, 2 * each, count, claimed.delta),
        one_run_tradeoff.epsilon(m, 2 * each, count, claimed.family, claimed.delta),
        one_run_tradeoff.chance(m, 2 * each, count, claimed.own),
        shift,
    )
