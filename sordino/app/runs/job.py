"""Assembles everything a run needs from its settings, and computes what it will cost.

    job = assemble_job(settings, say)                 data, model, sampler, noise and number of steps: ready to begin
    event(recipe, σ, prepared)                        what a whole run is going to release
    noise_multiplier(recipe, prepared)                the noise at which that fits the recipe's ε

    event = Gaussian(normalise) ∘ Gaussian(pca) ∘ Poisson(rate, Gaussian(σ))^steps         of a recipe's plain DP-SGD

Other methods and samplers bring the event of a dry run of their own query, which may depend on the number of records and on
the model: they are asked for with the prepared data.

**Privacy:** nothing is released here. Everything that touches the data is in the one event: what is released before the
first step reads every record once, without amplification. A calibrated noise multiplier was itself accounted for by a real
event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import cached_property
from typing import Any

from sordino import events, validate
from sordino.accounting import PLD
from sordino.app.runs.encoded_records import Prepared
from sordino.app.runs.methods import FIELD_OF_PART, PLAIN_WORDS, assign_parameters, find_word, is_plain_dpsgd, words_of
from sordino.app.runs.own_code import file_digest
from sordino.app.runs.preparation import preparation_events
from sordino.app.runs.problem import Problem, build, set_noise_scale
from sordino.app.runs.recipe import PLAIN, Recipe
from sordino.app.runs.run_data import Say, load_run_data
from sordino.app.runs.run_device import resolve_device
from sordino.app.runs.settings import NONPRIVATE, Settings, parse_diagnostics, resolve_batch_and_epochs
from sordino.clipping.flat import Flat
from sordino.diagnostics import CLASSES, LENGTHS, SUBSTEPS
from sordino.distributed.process_group import Ranks, ranks_of
from sordino.environment import current_environment
from sordino.events import Event, compose
from sordino.events.training import training_event
from sordino.ledger import claims
from sordino.ledger.claims import Claim
from sordino.ledger.ledger import Ledger
from sordino.lots.privacy_units import RECORD, Unit
from sordino.optim import StepNoise
from sordino.penalty import L2
from sordino.per_sample import Backend
from sordino.per_sample.physical_batch import choose_by_shapes, choose_for_ranks
from sordino.private import Private
from sordino.queries.calibrate_run import calibrate_noise, calibrate_steps
from sordino.queries.dry_run import dry_run
from sordino.queries.noisy_sum import Query
from sordino.registry import PARTS, RunNumbers
from sordino.release.noise import Gaussian
from sordino.sampling.sampler import Sampler
from sordino.sampling.size_disclosure import size_not_covered

TRAINING_LOSS = "training loss, shown while training"
NONPRIVATE_MEASURES = "measures of a network trained on the same records without privacy, shown for comparison"
TRAINING_EVALUATED = "accuracy and loss on the training records, shown at evaluations"
PLANNED = "the plan of the whole run: what was tested on the way is counted when it stops"
DISCLOSED_DIAGNOSTICS: Mapping[str, str] = {"lengths": LENGTHS, "classes": CLASSES, "substeps": SUBSTEPS}
"""What the claim does not cover when these diagnostics were asked for."""

_EVALUATIONS_IN_A_RUN = 20
"""Evaluations and checkpoints in a run, unless asked otherwise."""


@dataclass(frozen=True, eq=False)
class Job:
    """A run that is ready to begin; as `draft_job` makes it, a draft whose noise and steps are still to be calibrated."""

    settings: Settings
    data: Prepared
    problem: Problem
    multiplier: float
    """Noise multiplier of the steps."""
    steps: int
    physical_batch: int = 1
    """Records, or units, that are processed at once."""
    started: str = ""

    @cached_property
    def sampler(self) -> Sampler:
        """The sampler that draws the lots of the job."""
        run, parameters = self._run_numbers_and_parameters(1.0)
        sampler: Sampler = find_word("sampler", self._words["sampler"]).build(run, parameters["sampler"])
        return sampler

    @property
    def expected_batch(self) -> float:
        """The public number by which sums are divided."""
        given = self.settings.options.expected_batch
        return self.sampler.expected_size(self.data.drawn) if given is None else float(given)

    @property
    def steps_per_epoch(self) -> float:
        """The number of steps that draw as many records, on average, as there are."""
        return self.data.drawn / self.sampler.expected_size(self.data.drawn)

    @property
    def evaluate_every(self) -> int:
        """The number of steps between evaluations."""
        return self.settings.options.evaluate_every or max(1, self.steps // _EVALUATIONS_IN_A_RUN)

    @property
    def checkpoint_every(self) -> int:
        """The number of steps between checkpoints."""
        return self.settings.options.checkpoint_every or max(1, self.steps // _EVALUATIONS_IN_A_RUN)

    def create_query(self, multiplier: float | None = None) -> Query:
        """Returns the query that the job asks of each lot, at its own noise or at another; a non-private run has neither
        bound nor noise.
        """
        multiplier = self.multiplier if multiplier is None else multiplier
        run, parameters = self._run_numbers_and_parameters(multiplier)
        # The baseline has the same query without bound and noise, so that it differs in nothing else.
        if self.settings.options.non_private:
            clipping, noise = Flat(math.inf), Gaussian(0.0)
        else:
            clipping = find_word("clipping", self._words["clipping"]).build(run, parameters["clipping"])
            noise = find_word("noise", self._words["noise"]).build(run, parameters["noise"])
        query: Query = find_word("query", self._words["query"]).build(run, parameters["query"], clipping, noise)
        return query

    def step_noise(self) -> StepNoise | None:
        """Returns how much of the job's steps will be noise; None where its noise has no one public scale."""
        trained = sum(p.numel() for p in self.problem.model.parameters() if p.requires_grad)
        return StepNoise.of_query(
            self.create_query(), expected_batch=self.expected_batch, coordinates=trained, steps=self.steps
        )

    def create_backend(self) -> Backend:
        """Returns the job's backend for per-sample gradients; it times nothing, so that a replay computes the same
        bits.
        """
        run, parameters = self._run_numbers_and_parameters(1.0)
        word = PLAIN_WORDS["backend"] if self.settings.options.non_private else self._words["backend"]
        backend: Backend = find_word("backend", word).build(run, parameters["backend"])
        return backend

    def create_unit(self) -> Unit | None:
        """Returns the privacy unit of which lots are drawn, or None if it is the record."""
        recipe, ids = self.settings.recipe, self.data.units
        return None if ids is None or recipe.unit is None else Unit(ids, recipe.unit_records, recipe.unit)

    def create_penalty(self) -> L2 | None:
        """Returns the L2 penalty inside each record's gradient, or None."""
        strength = self.settings.recipe.penalty
        return L2(strength) if strength else None

    def event(self, multiplier: float | None = None, steps: int | None = None) -> Event:
        """Returns the event of everything that the job releases, at its own noise and number of steps or at others."""
        # The event comes from a dry run of the very query, sampler and backend that will train.
        training = dry_run(
            self.create_query(multiplier),
            self.sampler,
            self.data.drawn,
            self.steps if steps is None else steps,
            self.sampler.expected_size(self.data.drawn),
            self.create_backend(),
        )
        return compose([*preparation_events(self.settings.recipe), training])

    def planned_claim(self, so_far: Ledger | None = None, steps: int = 0, *, is_within_phase: bool = False) -> Claim:
        """Returns the claim that will hold when the whole job is done; what it will not cover is known before the first
        step.

        For a run that goes on, `so_far` is its ledger after `steps` steps. If these did not cost what the plan says,
        the whole plan is added to them, which is more than will be spent. `is_within_phase` says that the next lots belong
        to a phase that was charged as a whole, so that they cost nothing more.
        """
        parameter_count = sum(p.numel() for p in self.problem.model.parameters())
        planned_event, uncovered = self.event(), self.list_not_covered()
        # What was done already counts as it was done. The plan replaces it only if the two agree exactly.
        if so_far is not None:
            uncovered = so_far.disclosed
            event_so_far = so_far.event()
            on_plan = steps > 0 and event_so_far == self.event(steps=None if is_within_phase else steps)
            planned_event = planned_event if on_plan else compose([event_so_far, planned_event])
        recipe = self.settings.recipe
        unit = recipe.unit or RECORD
        return claims.make_claim(
            planned_event, recipe.delta, PLD(), uncovered, (PLANNED,), coordinates=parameter_count, unit=unit
        )

    def list_not_covered(self) -> tuple[str, ...]:
        """Returns what the job's claim will list as not covered, in the order in which it happens in the run."""
        options = self.settings.options
        # In the order of a run: what is known before it, what the data brings, what is shown on the way.
        seed = [claims.SEED] if options.seed is not None else []
        size = size_not_covered(self.sampler, self.data.drawn, options.expected_batch)
        shown = [TRAINING_LOSS, TRAINING_EVALUATED] if options.show_private else []
        compared = [NONPRIVATE_MEASURES] if options.baseline == NONPRIVATE else []
        asked_for = parse_diagnostics(options.diagnose)
        diagnostics = [words for name, words in DISCLOSED_DIAGNOSTICS.items() if name in asked_for]
        return (*seed, *size, *self.data.not_covered, *shown, *compared, *diagnostics)

    def resolved_table(self) -> dict[str, Any]:
        """Returns what was calibrated and counted to assemble the job, for the table [resolved] of config.toml."""
        # Public numbers and descriptions only: this table is in config.toml and in every checkpoint.
        data = self.data
        return {
            "noise_multiplier": self.multiplier,
            "steps": self.steps,
            "dataset_size": len(data.train),
            "test_size": len(data.test),
            "generated": data.generated,
            "expected_batch": self.expected_batch,
            "physical_batch": self.physical_batch,
            "sampler": str(self.sampler),
            "trainable": sum(p.numel() for p in self.problem.model.parameters() if p.requires_grad),
            "classes": data.classes if self.problem.classifies else None,
            "query": repr(self.create_query()),
            "started": self.started,
            "columns": data.encoder.titles or None,
            "class_names": list(data.encoder.classes) or None,
            "model_file": file_digest("model", self.settings.recipe.model),
            "clipping_file": file_digest("clipping", self.settings.recipe.weigher),
        }

    def create_private(self, seed: int | None, ledger: Ledger, ranks: Ranks | None) -> Private:
        """Creates the `Private` that trains the job's model."""
        # Isolation brings a backend of its own, one record at a time.
        isolate = self.settings.options.isolate
        return Private(
            self.problem.model,
            self.problem.loss_fn,
            self.create_query(),
            penalty=self.create_penalty(),
            backend=None if isolate else self.create_backend(),
            seed=seed,
            ledger=ledger,
            mesh=ranks,
            isolate=isolate,
            strict=self.settings.options.strict,
        )

    def config_table(self) -> dict[str, Any]:
        """Returns the content of the job's config.toml."""
        # Enough to know which code wrote the directory; what a replay depends on is in the ledger.
        versions = {
            name: value
            for name, value in current_environment().items()
            if name in ("sordino", "python", "torch", "numpy")
        }
        return {**self.settings.table(), "resolved": self.resolved_table(), "versions": versions}

    @cached_property
    def _words(self) -> dict[str, str]:
        return words_of(self.settings.recipe)

    def _run_numbers_and_parameters(self, multiplier: float) -> tuple[RunNumbers, dict[str, dict[str, float]]]:
        """Returns the public numbers of the job, and the parameters of each of its words."""
        recipe = self.settings.recipe
        # Methods may set their parameters by public numbers of the run, such as its size and its bound.
        sizes = {name: p.numel() for name, p in self.problem.model.named_parameters() if p.requires_grad}
        run = RunNumbers(
            bound=recipe.bound,
            multiplier=multiplier,
            rate=recipe.rate,
            steps=recipe.steps,
            records=self.data.drawn,
            tensors=len(sizes),
            trainable_numbers=sum(sizes.values()),
            learning_rate=self.problem.learning_rate,
            names=tuple(sizes),
        )
        return run, assign_parameters(self._words, run, self.settings.parameters)


def assemble_job(settings: Settings, say: Say, earlier_resolved: Mapping[str, Any] | None = None) -> Job:
    """Assembles the job of a run from its settings: reads the data, builds model, sampler and query, and calibrates noise
    and number of steps.

    `earlier_resolved` is what an earlier process resolved, which is then not calibrated again.
    """
    options = settings.options
    resolve_device(options.device)  # one that is not there is refused before anything is read
    data = load_run_data(settings.recipe, options.records, say, settings.own)
    # Model, query and sampler come from public settings and from the shape of the data alone.
    draft = draft_job(settings, data)
    recipe, lot = draft.settings.recipe, draft.sampler.expected_size(data.drawn)  # refuses what cannot be drawn
    _refuse_unfit_diagnostics(draft)
    if earlier_resolved is not None:
        # A run that goes on keeps the noise and the steps it began with.
        job = replace(
            draft,
            multiplier=validate.non_negative("noise_multiplier", earlier_resolved.get("noise_multiplier")),
            steps=validate.count("steps", earlier_resolved.get("steps")),
            physical_batch=validate.count("physical_batch", earlier_resolved.get("physical_batch")),
            started=str(earlier_resolved.get("started")),
        )
    else:
        # Calibrate the noise to the target ε, unless the recipe says it.
        multiplier, steps = recipe.noise_multiplier, recipe.steps
        if multiplier is None:
            assert recipe.epsilon is not None  # a recipe has one of the two
            say(f"calibrating the noise to ε = {recipe.epsilon:g}")
            multiplier = calibrate_noise(draft.event, recipe.epsilon, recipe.delta)
        # A budget cuts the number of steps at that noise.
        if options.budget is not None:
            steps = calibrate_steps(lambda count: draft.event(multiplier, count), steps, options.budget, recipe.delta)
        physical_batch = options.physical_batch or _choose_physical_batch(draft, lot)
        started = datetime.now(UTC).isoformat(timespec="seconds")
        job = replace(draft, multiplier=multiplier, steps=steps, physical_batch=physical_batch, started=started)
    # An optimizer that corrects for the noise has to know it.
    set_noise_scale(job.problem.optimizer, job.create_query(), job.expected_batch)
    return job


def draft_job(settings: Settings, data: Prepared) -> Job:
    """Returns the job of a run on data that was read, with the recipe's steps and noise multiplier 1, to be
    calibrated.
    """
    settings = resolve_batch_and_epochs(settings, data.drawn)
    recipe = settings.recipe
    if recipe.ranges is not None and not data.encoder.unbounded:  # no column is without bounds, so none are found
        recipe = replace(recipe, preparation=replace(recipe.preparation, ranges=None))
        settings = replace(settings, recipe=recipe)
    problem = build(recipe, data, settings.options.init_seed, resolve_device(settings.options.device))
    return Job(settings, data, problem, multiplier=1.0, steps=recipe.steps)


def _refuse_unfit_diagnostics(job: Job) -> None:
    """Refuses a job whose settings ask for diagnostics that it cannot have."""
    # Some diagnostics need classes, or a query that takes substeps.
    diagnose = job.settings.options.diagnose
    diagnostics = parse_diagnostics(diagnose)
    if "classes" in diagnostics and not job.problem.classifies:
        raise ValueError(f"diagnose={diagnose!r}: these records have no classes; leave them out")
    if "substeps" in diagnostics and words_of(job.settings.recipe)["query"] != "projected":
        raise ValueError(f"diagnose={diagnose!r}: substeps are those of --query projected; leave them out")


def _choose_physical_batch(job: Job, lot: float) -> int:
    """Returns how many records a job processes at once; for larger privacy units, how many units, each with its own
    rows.
    """
    # A unit fills its rows, so fewer units fit at once than records would.
    rows = 1 if job.data.units is None else job.settings.recipe.unit_records
    batch = max(1, choose_by_shapes(job.problem.model, job.data.train.tensors[0], lot * rows) // rows)
    return batch if ranks_of(None) is None else min(batch, choose_for_ranks(0, lot))


def event(
    recipe: Recipe,
    multiplier: float,
    prepared: Prepared | None = None,
    *,
    parameters: Mapping[str, float] | None = None,
) -> Event:
    """Returns the event of everything that a job by this recipe releases, at this noise multiplier of its steps.

    Plain DP-SGD needs the recipe alone. What another method's steps cost may depend on the data's size and on the model:
    give it the data as `prepare` makes it. `parameters` are those of its words.

    Args:
        recipe: a run before it is run.
        multiplier: noise of its steps.
        prepared: its data, where the method needs it.
        parameters: of its words.

    Returns:
        The event.

    Privacy:
        Nothing is released: a dry run.

    Examples:
        >>> from sordino.app.runs import find
        >>> type(event(find("mnist"), 2.0)).__name__
        'Together'

    """
    return _event_by_noise(recipe, prepared, parameters)(multiplier)


def noise_multiplier(
    recipe: Recipe,
    prepared: Prepared | None = None,
    *,
    parameters: Mapping[str, float] | None = None,
) -> float:
    """Returns the noise multiplier of a job by this recipe: the recipe's own, or the smallest at which the whole run is
    (ε, δ)-DP by PLD.

    >>> from sordino.app.runs import find, noise_multiplier
    >>> noise_multiplier(find("mnist", epsilon=1.0)) > noise_multiplier(find("mnist", epsilon=3.0))
    True
    """
    # A recipe that names its noise needs no calibration.
    target = recipe.privacy
    if target.noise_multiplier is not None:
        return target.noise_multiplier
    assert target.epsilon is not None  # a recipe has one of the two
    return calibrate_noise(_event_by_noise(recipe, prepared, parameters), target.epsilon, target.delta)


def _event_by_noise(
    recipe: Recipe, prepared: Prepared | None, parameters: Mapping[str, float] | None
) -> Callable[[float], Event]:
    """Returns the event that a job will cost as a function of its noise multiplier."""
    # With the data at hand, the event comes from a dry run of the method's own query and sampler.
    if prepared is not None:
        return draft_job(Settings(recipe, parameters=parameters or {}), prepared).event
    # Without data only plain DP-SGD has a known event; everything else is refused rather than guessed.
    unknown_without_data = [f"parameters={dict(parameters)!r}"] if parameters else []
    if not is_plain_dpsgd(recipe):
        given_words = {name: getattr(recipe, FIELD_OF_PART.get(name, name)) for name in ("method", *PARTS)}
        unknown_without_data += [f"{name}={word!r}" for name, word in given_words.items() if word not in (None, PLAIN)]
    if unknown_without_data:
        raise ValueError(
            f"{', '.join(unknown_without_data)}: what its steps cost depends on the number of records "
            "and on the model; give the data, as in noise_multiplier(recipe, prepare(recipe, data))"
        )
    return lambda sigma: compose(
        [*preparation_events(recipe), training_event(recipe.rate, events.Gaussian(sigma), recipe.steps)]
    )
