"""The one-run audit: trains once with canaries included by fair coins, and guesses the coins.

Steinke, Nasr & Jagielski 2023; Mahloujifar, Melis & Chaudhuri 2024; canaries as in `canaries.py`.

    white box   every released gradient is seen: a canary's score is Σ_t ⟨released_t, its own clipped gradient⟩; under
                correlated noise a gradient canary's is the likelihood ratio over all steps (`auditing/canary_scores.py`)
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

from sordino.accounting.phases import relation_of
from sordino.accounting.tradeoff import tradeoff
from sordino.app.runs.job import Job
from sordino.app.runs.problem import build
from sordino.app.runs.run_device import device_of
from sordino.auditing import guesses
from sordino.auditing.bounds import one_run, one_run_tradeoff, tradeoff_tests
from sordino.auditing.bounds.tradeoff_tests import LessNoisyFamily
from sordino.auditing.canaries import KINDS, Canaries, Kind, ModelWithCanaryNumbers, make_canaries, make_canary_loss
from sordino.auditing.canary_scores import score_canaries_in_phase
from sordino.events import CyclicPoisson, Event, FixedOrder, Relation, event_counts
from sordino.events.correlated_steps import find_correlated
from sordino.ledger.claims import Guarantee, NoGuarantee
from sordino.ledger.ledger import Ledger
from sordino.per_sample.batch_structure import move_to
from sordino.per_sample.protocol import LossFn
from sordino.private import Private
from sordino.queries.noisy_sum import Query
from sordino.rng.streams import Rng

ERROR = 0.05
GRADIENT_EVALUATIONS = 40
"""Steps at which the gradients of input canaries are computed, spread over the run."""


@dataclass(frozen=True)
class CanaryMeasurement:
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
class OneRunAudit:
    """The claim, and what was measured beside it."""

    epsilon: float
    delta: float
    mu: float
    steps: int
    measured: tuple[CanaryMeasurement, ...] = field(default_factory=tuple)

    def __str__(self) -> str:
        """Returns the result in words: each measurement, and what it does not show."""
        # A bound that reaches nothing is said to show nothing, so that nobody takes it for a proof.
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
        """Returns the result of the one-run audit as JSON holds it."""
        return {
            "passed": self.passed,
            "epsilon": self.epsilon,
            "delta": self.delta,
            "mu": self.mu,
            "steps": self.steps,
            "measured": [vars(m) for m in self.measured],
        }


@dataclass(frozen=True, eq=False)
class ClaimedCurves:
    """What the run claims, and the curves with which measurements are compared; created once for many runs."""

    event: Event
    epsilon: float
    delta: float
    mu: float
    inverse_curve: tradeoff_tests.Inverse
    noise_family: LessNoisyFamily

    @staticmethod
    def from_event(event: Event, epsilon: float, delta: float) -> ClaimedCurves:
        """Creates the curves that a one-run audit compares measurements with, from the run's event."""
        # The measured guesses are compared with the run's own curve and with that of less noise.
        curve = tradeoff(event)
        return ClaimedCurves(
            event, epsilon, delta, curve.mu, tradeoff_tests.inverse_of_curve(curve), LessNoisyFamily(event)
        )


def audit_one_run(
    job: Job,
    canaries_per_kind: int = 500,
    kinds: tuple[Kind, ...] = KINDS,
    *,
    claimed: ClaimedCurves | None = None,
    query: Query | None = None,
    seed: int | None = None,
    gradient_evaluations: int = GRADIENT_EVALUATIONS,
    say: Callable[[str], None] | None = None,
) -> OneRunAudit:
    """Carries out a one-run audit: trains the job once with `canaries_per_kind` canaries of every kind and measures
    what they show.

    `query` replaces the job's own query, for tests.
    """
    # Canaries are drawn by fair coins; the network gets a number for each gradient canary.
    report_progress = say or (lambda _: None)
    rng = Rng.from_entropy() if seed is None else Rng.from_seed(seed)
    prepared = job.data
    drawn_canaries = make_canaries(kinds, canaries_per_kind, prepared.test, prepared.classes, rng.child("canaries"))
    device = device_of(job.problem.model)
    problem = build(job.settings.recipe, prepared, job.settings.options.init_seed, device)
    model = ModelWithCanaryNumbers(problem.model, canaries_per_kind).to(device)
    # The black-box score is how much a canary's loss fell, so the network before training is kept.
    before = copy.deepcopy(model)
    # Where a claim is about a contribution replaced by nothing, a canary that is out keeps its place.
    keep_places = relation_of(job.event()) is Relation.ZERO_OUT
    train = drawn_canaries.add_to_dataset(prepared.train, keep_places=keep_places)
    audited_query, loss_fn = query or job.create_query(), make_canary_loss(problem.loss_fn)
    private = Private(
        model,
        loss_fn,
        audited_query,
        penalty=job.create_penalty(),
        backend=job.create_backend(),
        seed=seed,
        ledger=Ledger(),
    )
    # The numbers of the gradient canaries are trained as all other parameters are.
    optimizer = problem.optimizer
    optimizer.add_param_group({"params": list(model.numbers.parameters())})
    # Train as the run does, and score every canary against each released gradient. Under correlated noise the steps are
    # one release, and are scored together at the end.
    released_to_canaries: list[NDArray[np.float64]] = []
    white_box_scores = np.zeros(len(drawn_canaries.kind))
    steps_between_evaluations = max(1, job.steps // gradient_evaluations)
    input_canaries = np.concatenate(
        [drawn_canaries.places_of(kind) for kind in kinds if kind != "gradient"] or [np.zeros(0, dtype=np.int64)]
    )
    expected = job.expected_batch
    for lot in private.draws(train, job.sampler, job.steps, expected_batch=expected, physical_batch=job.physical_batch):
        for group in optimizer.param_groups:
            group["lr"] = problem.learning_rate(lot.step)
        private.backward(lot)
        # A gradient canary has a parameter of its own, so its score is read off there.
        canary_gradient = model.numbers.weight.grad
        if "gradient" in kinds and canary_gradient is not None:
            at_canaries = canary_gradient.detach().cpu().reshape(-1)[:canaries_per_kind].double().numpy()
            white_box_scores[drawn_canaries.places_of("gradient")] += at_canaries
            released_to_canaries.append(at_canaries * expected / job.settings.recipe.bound)
        # Input canaries need a pass of their own, so they are scored at some of the steps.
        if len(input_canaries) and lot.step % steps_between_evaluations == 0:
            white_box_scores[input_canaries] += _project_on_canaries(
                private, model, loss_fn, drawn_canaries, input_canaries, job.settings.recipe.bound
            )
        optimizer.step()
        if (lot.step + 1) % max(1, job.steps // 4) == 0:
            report_progress(f"step {lot.step + 1} of {job.steps}")
    phase = _find_correlated_phase(private.event if claimed is None else claimed.event)
    if phase is not None and released_to_canaries:
        white_box_scores[drawn_canaries.places_of("gradient")] = score_canaries_in_phase(
            np.stack(released_to_canaries), phase
        )
    # Compare the guesses with what the claim allows.
    claimed_curves = claimed or _claimed_curves_of(private, job)
    black_box_scores = _evaluate_canary_losses(before, loss_fn, drawn_canaries) - _evaluate_canary_losses(
        model, loss_fn, drawn_canaries
    )
    measured = []
    for kind in kinds:
        # The released gradients show more than the final network; both views are measured.
        canary_indices = drawn_canaries.places_of(kind)
        measured.append(
            _measure_canaries(
                kind,
                "white box",
                white_box_scores[canary_indices],
                drawn_canaries.inside[canary_indices],
                claimed_curves,
            )
        )
        if kind != "gradient":
            measured.append(
                _measure_canaries(
                    kind,
                    "black box",
                    black_box_scores[canary_indices],
                    drawn_canaries.inside[canary_indices],
                    claimed_curves,
                )
            )
    return OneRunAudit(claimed_curves.epsilon, claimed_curves.delta, claimed_curves.mu, job.steps, tuple(measured))


def _find_correlated_phase(event: Event) -> CyclicPoisson | FixedOrder | None:
    """Returns the phase with correlated noise that a one-run audit is of, or None if steps have noise of their own."""
    for part, _ in event_counts(event):
        if isinstance(part, CyclicPoisson | FixedOrder) and find_correlated(part.event) is not None:
            return part
    return None


def _claimed_curves_of(private: Private, job: Job) -> ClaimedCurves:
    """Returns the claim of the copy that a one-run audit trains, with its curves; raises if there is no guarantee."""
    # The copy has its own claim, because the canaries are among its records.
    claim = private.claim(job.settings.recipe.delta)
    if isinstance(claim, NoGuarantee):
        raise ValueError(f"{claim}; there is no claim to measure anything beside")
    assert isinstance(claim, Guarantee)
    return ClaimedCurves.from_event(claim.event, claim.epsilon, claim.delta)


def _project_on_canaries(
    private: Private,
    model: nn.Module,
    loss_fn: LossFn,
    drawn_canaries: Canaries,
    canary_indices: NDArray[np.int64],
    bound: float,
) -> NDArray[np.float64]:
    """Returns ⟨released gradient, clipped gradient of the canary⟩ for each canary of a one-run audit."""
    # Clipped as the run clips them, so that every canary counts as it counted in the sum.
    grads = {name: p.grad.detach() for name, p in model.named_parameters() if p.grad is not None}
    products = []
    for start in range(0, len(canary_indices), 250):
        chosen = torch.from_numpy(canary_indices[start : start + 250])
        batch = (drawn_canaries.x[chosen], drawn_canaries.y[chosen], drawn_canaries.number[chosen])
        part = private.open_for_audit().backend.per_sample(model, loss_fn, move_to(batch, device_of(model)))
        norms = part.norms().total().double()
        products.append(part.dot(grads).double().sum(dim=1) * torch.clamp(bound / (norms + 1e-12), max=1.0))
    return torch.cat(products).detach().cpu().numpy()


@torch.no_grad()
def _evaluate_canary_losses(model: nn.Module, loss_fn: LossFn, drawn_canaries: Canaries) -> NDArray[np.float64]:
    """Returns the losses of all canaries of a one-run audit, in evaluation mode."""
    # In evaluation mode, in which an attacker would be given the model.
    training, _ = model.training, model.eval()
    try:
        batch = move_to((drawn_canaries.x, drawn_canaries.y, drawn_canaries.number), device_of(model))
        return loss_fn(model, *batch).double().cpu().numpy()
    finally:
        model.train(training)


def _measure_canaries(
    kind: str, access: str, scores: NDArray[np.float64], inside: NDArray[np.bool_], claimed: ClaimedCurves
) -> CanaryMeasurement:
    """Counts a one-run audit's correct guesses for one kind of canary and turns them into lower bounds on ε."""
    # The bounds hold for any number of guesses, as long as it does not depend on the coins.
    canary_count = len(scores)
    # The number of guesses is fixed by the claim alone, before the coins are looked at.
    guesses_per_side = guesses.best_number_of_guesses(canary_count, round(claimed.mu, 3))
    right_guesses = guesses.count_right_guesses(scores, inside, guesses_per_side)
    spread = (scores[inside].std() + scores[~inside].std()) / 2
    shift = float((scores[inside].mean() - scores[~inside].mean()) / spread) if spread > 0 else 0.0
    return CanaryMeasurement(
        kind,
        access,
        canary_count,
        2 * guesses_per_side,
        right_guesses,
        one_run.epsilon_lower_bound(canary_count, 2 * guesses_per_side, right_guesses, claimed.delta),
        one_run_tradeoff.epsilon_lower_bound(
            canary_count, 2 * guesses_per_side, right_guesses, claimed.noise_family, claimed.delta
        ),
        one_run_tradeoff.p_value(canary_count, 2 * guesses_per_side, right_guesses, claimed.inverse_curve),
        shift,
    )
