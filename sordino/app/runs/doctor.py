"""Doctor: why a run's accuracy is low, and what to change, from what the run has released.

    baseline          is the model better than one that has learnt nothing?
    signal to noise   of the whole run and of every layer, on released gradients
    learning rate     how far signal and noise carry the parameters, beside how long they were at the start
    steps             what more or fewer steps would give at the same ε
    evaluations       whether the accuracy was still rising, or falling, at the end
    share clipped     is private: it is not said unless it is asked for, and then it is released with noise and charged

Privacy: the first five read config.toml, metrics.jsonl, the parameters before and after training and the sums of released
gradients in the last checkpoint. All of these were released, or are public, or are named in the run's claim. For the share
of clipped records one noisy number of records is released, which is entered in the run directory before it is shown.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from sordino import validate
from sordino.accounting import PLD
from sordino.app.runs import directory
from sordino.app.runs.directory import CONFIG, FINISHED, INITIAL, MODEL, PRIVACY, Row, Run, enter_further_release
from sordino.app.runs.given_data import GIVEN
from sordino.app.runs.job import assemble_job
from sordino.app.runs.methods import words_of
from sordino.app.runs.settings import Config, Settings, read_config
from sordino.distributed.process_group import new_rng
from sordino.events import Event, compose, from_json
from sordino.events import Gaussian as GaussianEvent
from sordino.ledger import claims
from sordino.ledger.claims import Claim, Guarantee
from sordino.ledger.ledger import Ledger
from sordino.lots.record_lengths import gradient_lengths
from sordino.optim.signal_to_noise import figures_by_layer, ratio_to_noise
from sordino.optim.step_noise import ENOUGH, StepNoise
from sordino.penalty import prepare_backend
from sordino.queries.epsilon_target import EpsilonTarget
from sordino.release.noise import Gaussian
from sordino.sampling.poisson import Poisson
from sordino.statistics import Mean, ask

GOOD, LOOK, PROBLEM, UNKNOWN = "good", "look", "problem", "not known"
ASKED_CLIPPED = "a noisy number of records with a gradient longer than the bound, released by sordino doctor"
_PLAIN_QUERY = {"query": "noisy-sum", "clipping": "flat", "noise": "gaussian"}
_CLIPPING_NOISE = 20.0
"""Noise that is proposed for the number of clipped records; by itself ε = 0.2 at δ = 1e-5."""
_CHUNK = 256


@dataclass(frozen=True)
class Symptom:
    """One thing that was looked at."""

    name: str
    grade: str
    """good, look, problem, or not known."""
    found: str
    cure: str = ""

    def __str__(self) -> str:
        lines = [f"{self.name:<16}  {self.grade:<9}  {self.found}"]
        return "\n".join([*lines, *([f"{'':<29}{self.cure}"] if self.cure else [])])


@dataclass(frozen=True)
class Examination:
    """What was found in a run."""

    run: Path
    symptoms: tuple[Symptom, ...]

    def __str__(self) -> str:
        return "\n".join(map(str, self.symptoms))

    def table(self) -> dict[str, Any]:
        """Returns the examination as JSON can hold it."""
        return {"run": str(self.run), "symptoms": [vars(symptom) for symptom in self.symptoms]}


@dataclass(frozen=True)
class _Evidence:
    """What of a run directory is read: public and released values alone."""

    folder: Path
    settings: Settings
    resolved: Mapping[str, Any]
    rows: list[Row]
    noise: StepNoise | None
    """The public noise of a step; None where the method's noise has no one scale."""
    sums: Mapping[str, Tensor]
    """Sums of all released gradients, by parameter."""
    summed: int
    """How many steps are in these sums."""
    highest: float
    """The largest signal to noise that the run had after any of its steps; 0 where it was not kept."""

    @property
    def run_figure(self) -> float | None:
        """The signal to noise of all steps together, the main figure that the doctor goes by."""
        if self.noise is None or not self.summed:
            return None
        square = math.fsum(float(torch.linalg.vector_norm(total)) ** 2 for total in self.sums.values())
        return ratio_to_noise(square, self.summed * self.noise.length**2)

    @property
    def mean_signal(self) -> float | None:
        """The length of the mean released gradient without its noise: what the steps agree on."""
        figure = self.run_figure
        return None if figure is None or self.noise is None else figure * self.noise.length / math.sqrt(self.summed)


def examine_run(folder: str | Path) -> Examination:
    """Returns the doctor's examination of a run: why its accuracy may be low, from what it has released; this costs
    nothing.

    Args:
        folder: a run directory, of a run that is finished or was stopped.

    """
    evidence = _read_evidence(Path(folder))
    baseline = _compare_with_baseline(evidence)
    has_learnt = baseline.grade == GOOD
    symptoms = [
        _examine_claim(evidence),
        baseline,
        *_examine_signal(evidence, has_learnt=has_learnt),
        _examine_learning_rate(evidence, has_learnt=has_learnt),
        _examine_steps(evidence),
        _examine_evaluations(evidence),
        _offer_share_clipped(evidence),
    ]
    return Examination(evidence.folder, tuple(symptom for symptom in symptoms if symptom is not None))


def _read_evidence(folder: Path) -> _Evidence:
    """Reads what the doctor goes by from a run directory."""
    run = Run.open(folder)
    config: Config = read_config(folder / CONFIG)
    settings, resolved = config.to_settings(), config.resolved
    # The sums of released gradients are in the newest checkpoint; runs of 0.3.0 have none.
    state = directory.read_latest(run.checkpoints)[0].state
    signal = state.get("signal") or {"sums": {}, "steps": 0}
    # The noise of a step has one public scale for plain DP-SGD alone.
    words = words_of(settings.recipe)
    is_plain = all(words[part] == word for part, word in _PLAIN_QUERY.items()) and not settings.options.non_private
    multiplier, lot = float(resolved.get("noise_multiplier") or 0), float(resolved.get("expected_batch") or 0)
    noise = None
    if is_plain and multiplier > 0 and lot > 0:
        bound = settings.recipe.bound
        noise = StepNoise(multiplier * bound / lot, int(resolved["trainable"]), bound, lot, int(resolved["steps"]))
    sums, steps, highest = signal["sums"], int(signal["steps"]), float(signal.get("highest", 0.0))
    return _Evidence(folder, settings, resolved, run.read_rows(), noise, sums, steps, highest)


def _examine_claim(evidence: _Evidence) -> Symptom:
    """Returns the doctor's finding on the claim: whether the run has a guarantee at all."""
    reason = _read_privacy(evidence.folder)["claim"].get("reason")
    if reason is None:
        return Symptom("claim", GOOD, "the run has a guarantee")
    return Symptom(
        "claim", PROBLEM, f"no guarantee: {reason}", "mend this first; strict=True stops a run where it happens"
    )


def _compare_with_baseline(evidence: _Evidence) -> Symptom:
    """Returns the doctor's finding on what was learnt: the last evaluation against a model that has learnt nothing."""
    measures = (evidence.rows[-1].measures if evidence.rows else None) or {}
    baseline = measures.get("baseline") or {}
    # Classes are compared by accuracy, numbers by the share of the variance that is explained.
    if measures.get("accuracy") is not None and baseline.get("accuracy") is not None:
        model, naive, what = measures["accuracy"], baseline["accuracy"], "always the most frequent class"
        shown = f"accuracy {model:.1%}, {what} {naive:.1%}"
    elif measures.get("r2") is not None:
        model, naive = measures["r2"], 0.0
        shown = f"R² {model:.2f}, always the mean 0"
    else:
        return Symptom("baseline", UNKNOWN, "the run has no evaluation beside a baseline")
    # A gain that chance explains on so many test records is none: two standard errors of the baseline's accuracy.
    test_size = int(evidence.resolved.get("test_size") or 0)
    by_chance = 2 * math.sqrt(max(naive * (1 - naive), 0.0) / test_size) if test_size else 0.0
    if model <= naive + max(0.005, by_chance):
        return Symptom("baseline", PROBLEM, shown, "the model is not clearly better than the simplest answer")
    return Symptom("baseline", GOOD, shown)


def _examine_signal(evidence: _Evidence, *, has_learnt: bool) -> list[Symptom]:
    """Returns the doctor's findings on the signal in a run's steps, in all and by layer, from the sums of released
    gradients.

    The figure is of what the steps agree on. Gradients of a network turn while it learns, and they pull back what noise
    moved when it has learnt. So a run is judged by the highest figure it had, and one that is better than the
    baseline may have more signal than any figure shows.
    """
    figure, noise = evidence.run_figure, evidence.noise
    # Without a scale of the noise or without sums there is nothing to compare; a guess would look like a finding.
    if figure is None or noise is None:
        why = "this method's noise has no one public scale" if noise is None else "this run kept no sums of gradients"
        return [Symptom("signal to noise", UNKNOWN, why)]
    # A run that has learnt has signal, whatever the figure says, so it is no problem but something to look at.
    highest = max(figure, evidence.highest)
    grade = (
        GOOD if highest >= ENOUGH or (highest >= 1 and has_learnt) else LOOK if highest >= 1 or has_learnt else PROBLEM
    )
    earlier = f"{highest:.2g} at best and " if highest > figure else ""
    found = (
        f"{earlier}{figure:.2g} over {evidence.summed} steps, of what the released gradients agree on; "
        "below 1 is mostly noise"
    )
    cure = ""
    if grade != GOOD:
        cure = f"train fewer than {noise.coordinates:,} numbers (freeze layers, a smaller model)"
        cure += _advise_larger_lots(evidence, figure, noise)
    # A layer whose figure chance alone explains shows no signal.
    layers = figures_by_layer(evidence.sums, evidence.summed, noise.deviation)
    named = ", ".join(f"{name or 'parameters'} {value:.2g}" for name, value in layers.items())
    silent = [name or "parameters" for name, value in layers.items() if value == 0]
    layer_cure = ""
    # If every layer is silent, freezing them all is no advice; the figure of the whole run says it already.
    if silent and len(silent) < len(layers):
        layer_cure = f"in {', '.join(silent)} no signal stands out of the noise: try the run with them frozen"
    return [
        Symptom("signal to noise", grade, found, cure),
        Symptom("by layer", LOOK if silent else GOOD, named, layer_cure),
    ]


def _advise_larger_lots(evidence: _Evidence, figure: float, noise: StepNoise) -> str:
    """Returns the doctor's advice to draw half of the records at each step: what this gives at the same ε and number of
    steps, or nothing if it is no more.
    """
    recipe, records = evidence.settings.recipe, evidence.resolved.get("dataset_size")
    if recipe.epsilon is None or not records or noise.lot > 0.3 * records:
        return ""
    target = EpsilonTarget(recipe.epsilon, recipe.delta, noise.bound)
    query = target.calibrate_query(Poisson(0.5), int(records), noise.steps)
    # The signal of a step does not depend on the size of the lot, so the figure goes with 1 / noise.
    larger = figure * noise.deviation / (query.noise.multiplier * noise.bound / (0.5 * records))
    return f"; or draw half of the records at every step, which gives {larger:.2g}" if larger > 1.1 * figure else ""


def _examine_learning_rate(evidence: _Evidence, *, has_learnt: bool) -> Symptom:
    """Returns the doctor's finding on the learning rate: how far signal and noise carry the parameters, in lengths of
    the parameters at the start.

    A step of SGD is η g̃. One of Adam divides every coordinate by its root mean square, which noise dominates, so it is
    about η g̃ / s. Over T steps noise carries d coordinates η s √(T d), and a signal of length ‖g‖ carries them η T ‖g‖.
    """
    noise, signal, recipe = evidence.noise, evidence.mean_signal, evidence.settings.recipe
    # Every figure below needs the noise of plain DP-SGD and the parameters at both ends.
    if noise is None or signal is None or not evidence.rows or not (evidence.folder / MODEL).is_file():
        return Symptom("learning rate", UNKNOWN, "needs a finished run of plain DP-SGD")
    rate = math.fsum(row.learning_rate for row in evidence.rows) / len(evidence.rows)
    # Momentum adds up past steps to 1 / (1 − m) of them; Adam divides by the deviation that noise gives a coordinate.
    scale = 1 / (1 - recipe.momentum) if recipe.optimizer == "sgd" else 1 / noise.deviation
    steps = evidence.summed
    by_noise = rate * scale * noise.deviation * math.sqrt(steps * noise.coordinates)
    by_signal = rate * scale * steps * signal
    # Parameters before and after training are in files of the run.
    before = safetensors.torch.load_file(evidence.folder / INITIAL)
    after = safetensors.torch.load_file(evidence.folder / MODEL)
    # Buffers and frozen layers are not trained and would lengthen the start.
    trained = [name for name in before if name in evidence.sums]
    start = _length({name: before[name] for name in trained})
    moved = _length({name: after[name] - before[name] for name in trained if name in after})
    found = (
        f"{rate:.2g} on average: noise carries the parameters {by_noise:.2g}, signal {by_signal:.2g}; "
        f"they moved {moved:.2g} from a start of length {start:.2g}"
    )
    # Of d coordinates of pure noise the square of the signal to noise has a deviation of √(2/d), so a signal within four
    # of them may be none at all. That matters for models of few parameters only.
    is_clear = by_signal**2 > 4 * math.sqrt(2 / noise.coordinates) * by_noise**2
    by_clear_signal = by_signal if is_clear else 0.0
    # Noise that carries further than both the start and the signal leaves neither in the result.
    if by_noise > 3 * max(start, by_clear_signal):
        lower = f"try {rate / 4:.2g} to {rate / 2:.2g}"
        # In a run that has learnt, later gradients pull back what noise moved, and noise does not add up like this.
        if has_learnt:
            return Symptom("learning rate", LOOK, found, f"{lower} if the accuracy is too low: steps are mostly noise")
        return Symptom("learning rate", PROBLEM, found, f"{lower}: noise drowns the start")
    if by_signal < 0.1 * start and by_noise < 0.3 * start:
        return Symptom("learning rate", LOOK, found, f"try {rate * 2:.2g} to {rate * 8:.2g}: the run hardly moved")
    return Symptom("learning rate", GOOD, found)


def _length(tensors: Mapping[str, Tensor]) -> float:
    return math.sqrt(math.fsum(float(torch.linalg.vector_norm(tensor.double())) ** 2 for tensor in tensors.values()))


def _examine_steps(evidence: _Evidence) -> Symptom:
    """Returns the doctor's finding on the number of steps: what more or fewer would give at the same ε, with the signal
    that was measured.
    """
    noise, signal, recipe = evidence.noise, evidence.mean_signal, evidence.settings.recipe
    records = evidence.resolved.get("dataset_size")
    # A run whose noise was given has no ε to keep, and without signal every number of steps is as good.
    if noise is None or not signal or recipe.epsilon is None or not records:
        return Symptom("steps", UNKNOWN, "needs a target ε and a signal above 0")
    if words_of(recipe)["sampler"] != "poisson":
        return Symptom("steps", UNKNOWN, "is computed for Poisson sampling alone")
    figures = {}
    for factor in (0.5, 1.0, 2.0):
        # The noise is calibrated again for so many steps; the signal of a step stays.
        steps = max(1, round(factor * noise.steps))
        query = EpsilonTarget(recipe.epsilon, recipe.delta, noise.bound).calibrate_query(
            Poisson(recipe.rate), int(records), steps
        )
        other = replace(noise, deviation=query.noise.multiplier * noise.bound / noise.lot, steps=steps)
        figures[steps] = math.sqrt(steps) * signal / other.length
    found = ", ".join(f"{steps} steps {figure:.2g}" for steps, figure in figures.items())
    best = max(figures, key=lambda steps: figures[steps])
    # The figure is an estimate, so a gain of less than a tenth is no reason to change a run.
    if best != noise.steps and figures[best] > 1.1 * figures[noise.steps]:
        return Symptom("steps", LOOK, f"signal to noise at the same ε: {found}", f"try {best} steps")
    return Symptom("steps", GOOD, f"signal to noise at the same ε: {found}")


def _examine_evaluations(evidence: _Evidence) -> Symptom:
    """Returns the doctor's finding on the evaluations: whether they were still rising or were falling at the end."""
    # Without an accuracy the loss takes its place with its sign turned, so that higher is better in both.
    scores = [row.test_accuracy if row.test_accuracy is not None else -row.test_loss for row in evidence.rows]
    if len(scores) < 4:
        return Symptom("evaluations", UNKNOWN, "fewer than four evaluations; evaluate more often with evaluate_every")
    kind = "accuracy" if evidence.rows[-1].test_accuracy is not None else "loss, with its sign turned,"
    # Rises and falls are shares of the best score, with a floor against a score of zero.
    spread = max(abs(max(scores)), 1e-12)
    # The rise is taken over the last quarter of the evaluations; between two neighbours it is mostly chance.
    rise, fall = scores[-1] - scores[-1 - len(scores) // 4], max(scores) - scores[-1]
    found = f"{kind} from {scores[0]:.3g} to {scores[-1]:.3g}, at best {max(scores):.3g}"
    if fall > 0.03 * spread:
        return Symptom(
            "evaluations", LOOK, found, "it fell at the end: lower the learning rate, let it decay, or average"
        )
    if rise > 0.01 * spread:
        return Symptom("evaluations", LOOK, found, "it was still rising: a higher learning rate, or more steps")
    return Symptom("evaluations", GOOD, found)


# The share of clipped records, which is private.


def _offer_share_clipped(evidence: _Evidence) -> Symptom | None:
    """Returns the doctor's note that the share of clipped records is private, with what its release would cost."""
    if evidence.noise is None:
        return None
    claim = _claim_with(evidence.folder, evidence.settings, GaussianEvent(_CLIPPING_NOISE))
    price = (
        f"ε would be {claims.round_up(claim.epsilon)}"
        if isinstance(claim, Guarantee)
        else "there is no guarantee to keep"
    )
    return Symptom(
        "share clipped",
        UNKNOWN,
        "is private, and this run has not released it",
        f"--ask-clipped {_CLIPPING_NOISE:g} releases it, with noise of {_CLIPPING_NOISE:g} records: {price}",
    )


def release_share_clipped(folder: str | Path, noise: float) -> tuple[Symptom, Claim]:
    """Releases for the doctor, with noise, how many training records have a gradient longer than the bound, at the
    trained model.

    Args:
        folder: the directory of a finished run whose data are in a file or are a recipe's own.
        noise: the standard deviation of the noise, in records.

    Returns:
        What was found, and the claim of the run with this release in it.

    Privacy:
        One Gaussian release on all records. It is in the run directory before the number is known to anyone, and
        privacy.json has the claim of the run and this release together.

    """
    run, noise = Run.open(Path(folder)), validate.positive("noise", noise)
    config = read_config(run.folder / CONFIG)
    settings, privacy = config.to_settings(), _read_privacy(run.folder)
    # Records must be at hand to be asked, and the noise protects one record, which is too little for a larger unit.
    if privacy["status"] != FINISHED or settings.recipe.dataset == GIVEN or settings.recipe.unit is not None:
        raise ValueError(
            f"{run.folder}: the share of clipped records can be asked of a finished run by record, on a file or a recipe's "
            "own data; others have no data here, or another unit"
        )
    if not all(words_of(settings.recipe)[part] == word for part, word in _PLAIN_QUERY.items()):
        raise ValueError(f"{run.folder}: its clipping rule has no one bound; there is no share to ask for")
    # The charge comes first: whatever happens afterwards, the run directory says that the number may be known.
    event = GaussianEvent(noise)
    claim = _claim_with(run.folder, settings, event)
    enter_further_release(run.folder, event, ASKED_CLIPPED)
    run.write_privacy(claim, privacy["status"], privacy["steps"], privacy["budget"])
    # Measure every record's gradient at the trained model, and release the number of those that are clipped.
    job = assemble_job(settings, lambda _: None, config.resolved)
    model = job.problem.model
    model.load_state_dict(safetensors.torch.load_file(run.folder / MODEL))
    backend = prepare_backend(job.create_backend(), job.create_penalty(), model)
    tensors = job.data.train.tensors
    chunks = zip(*(column.split(_CHUNK) for column in tensors), strict=True)
    lengths = gradient_lengths(backend.per_sample(model, job.problem.loss_fn, chunk) for chunk in chunks)
    # A record is counted once or not at all, so it changes the sum by at most 1, the sensitivity of the release.
    is_clipped = (lengths > settings.recipe.bound).float()[:, None]
    ledger = Ledger()
    count = float(ask(Mean(1.0, Gaussian(noise)), is_clipped, ledger=ledger, expected_batch=1.0, rng=new_rng()))
    assert ledger.event() == event, "the release costs what was entered"
    # Noise may carry the count out of its range; cutting it to a share is post-processing and costs nothing.
    share = min(1.0, max(0.0, count / len(is_clipped)))
    error = 2 * noise / len(is_clipped)
    found = f"about {share:.0%} of the records, ± {error:.0%}, have longer gradients than {settings.recipe.bound:g}"
    if share > 0.9:
        return Symptom(
            "share clipped", LOOK, found, "nearly all: the bound only scales the step; a larger one may add signal"
        ), claim
    if share < 0.1:
        cure = "nearly none: a smaller bound has less noise and changes little else"
        return Symptom("share clipped", LOOK, found, cure), claim
    return Symptom("share clipped", GOOD, found), claim


def _read_privacy(folder: Path) -> dict[str, Any]:
    table: dict[str, Any] = json.loads((folder / PRIVACY).read_text("utf-8"))
    return table


def _claim_with(folder: Path, settings: Settings, event: Event) -> Claim:
    """Returns the claim of a run together with the doctor's own release, which is made on all of its records."""
    claim = _read_privacy(folder)["claim"]
    if "reason" in claim:
        return claims.NoGuarantee(claim["reason"])
    trained = sum(tensor.numel() for tensor in safetensors.torch.load_file(folder / INITIAL).values())
    return claims.make_claim(
        compose([from_json(claim["event"]), event]),
        settings.recipe.delta,
        PLD(),
        tuple(claim["not_covered"]),
        (*claim["rests_on"], f"{ASKED_CLIPPED}: of the records that the run was trained on"),
        coordinates=trained,
        unit=claim["unit"],
    )
