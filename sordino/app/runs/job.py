"""Assembles everything a run needs from its settings: data, model, sampler, noise, steps.

Nothing is released here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any

from sordino import validate
from sordino.accounting import PLD
from sordino.app.runs.cost import RunParts
from sordino.app.runs.diagnosis import DISCLOSED, parse_names
from sordino.app.runs.methods import words_of
from sordino.app.runs.prepared import RunData
from sordino.app.runs.problem import Problem, build, file_digest, set_noise_scale
from sordino.app.runs.recipe import Recipe
from sordino.app.runs.run_data import Say, load_run_data
from sordino.app.runs.settings import Settings, resolve_batch_and_epochs
from sordino.distributed.process_group import Ranks, ranks_of
from sordino.environment import current_environment
from sordino.events import Event, compose
from sordino.ledger import claims
from sordino.ledger.claims import Claim
from sordino.ledger.ledger import Ledger
from sordino.lots.privacy_units import RECORD, Unit
from sordino.penalty import L2
from sordino.per_sample import Backend
from sordino.per_sample.physical_batch import choose_by_shapes, choose_for_ranks
from sordino.private import Private
from sordino.queries.noisy_sum import Query
from sordino.queries.target_epsilon import calibrate_noise, calibrate_steps
from sordino.sampling.sampler import Sampler
from sordino.sampling.size_disclosure import size_not_covered

TRAINING_LOSS = "training loss, shown while training"
TRAINING_EVALUATED = "accuracy and loss on the training records, shown at evaluations"
PLANNED = "the plan of the whole run: what was tested on the way is counted when it stops"

_EVALUATIONS_IN_A_RUN = 20
"""Evaluations and checkpoints in a run, unless asked otherwise."""


@dataclass(frozen=True, eq=False)
class Job:
    """A run that is ready to begin."""

    settings: Settings
    data: RunData
    problem: Problem
    sampler: Sampler
    multiplier: float
    steps: int
    physical_batch: int
    started: str

    @property
    def expected_batch(self) -> float:
        """The public number by which sums are divided."""
        given = self.settings.options.expected_batch
        return self.sampler.expected_size(self.data.prepared.drawn) if given is None else float(given)

    @property
    def steps_per_epoch(self) -> float:
        """The number of steps that draw as many records, on average, as there are."""
        return self.data.prepared.drawn / self.sampler.expected_size(self.data.prepared.drawn)

    @property
    def evaluate_every(self) -> int:
        """The number of steps between evaluations."""
        return self.settings.options.evaluate_every or max(1, self.steps // _EVALUATIONS_IN_A_RUN)

    @property
    def checkpoint_every(self) -> int:
        """The number of steps between checkpoints."""
        return self.settings.options.checkpoint_every or max(1, self.steps // _EVALUATIONS_IN_A_RUN)

    def create_query(self) -> Query:
        """Returns the query that is asked of each lot."""
        return self._parts.create_query(self.multiplier)

    def create_backend(self) -> Backend:
        """Returns the backend for per-sample gradients; it times nothing, so that a replay computes the same bits."""
        return self._parts.create_backend()

    def create_unit(self) -> Unit | None:
        """Returns the privacy unit of which lots are drawn, or None if it is the record."""
        recipe, ids = self.settings.recipe, self.data.prepared.units
        return None if ids is None or recipe.unit is None else Unit(ids, recipe.unit_records, recipe.unit)

    def create_penalty(self) -> L2 | None:
        """Returns the L2 penalty inside each record's gradient, or None."""
        strength = self.settings.recipe.penalty
        return L2(strength) if strength else None

    def event(self) -> Event:
        """Returns the event of the whole run."""
        return self._parts.event(self.multiplier, self.steps)

    def planned_claim(self, so_far: Ledger | None = None, steps: int = 0) -> Claim:
        """Returns the claim that will hold when the whole job is done; what it will not cover is known before the first
        step.

        For a run that goes on, `so_far` is its ledger after `steps` steps. If these did not cost what the plan says,
        the whole plan is added to them, which is more than will be spent.
        """
        parameter_count = sum(p.numel() for p in self.problem.model.parameters())
        planned_event, uncovered = self.event(), self.list_not_covered()
        # What was done already counts as it was done. The plan replaces it only if the two agree exactly.
        if so_far is not None:
            uncovered = so_far.disclosed
            event_so_far = so_far.event()
            on_plan = steps > 0 and event_so_far == self._parts.event(self.multiplier, steps)
            planned_event = planned_event if on_plan else compose([event_so_far, planned_event])
        recipe = self.settings.recipe
        unit = recipe.unit or RECORD
        return claims.make_claim(
            planned_event, recipe.delta, PLD(), uncovered, (PLANNED,), coordinates=parameter_count, unit=unit
        )

    def list_not_covered(self) -> tuple[str, ...]:
        """Returns what the job's claim will list as not covered, in the order in which it happens in the run."""
        options, drawn = self.settings.options, self.sampler
        seed = [claims.SEED] if options.seed is not None else []
        size = size_not_covered(drawn, self.data.prepared.drawn, options.expected_batch)
        shown = [TRAINING_LOSS, TRAINING_EVALUATED] if options.show_private else []
        diagnostics = [DISCLOSED[name] for name in parse_names(options.diagnose) if name in DISCLOSED]
        return (*seed, *size, *self.data.not_covered, *shown, *diagnostics)

    def resolved_table(self) -> dict[str, Any]:
        """Returns what was calibrated and counted to assemble the job, for the table [resolved] of config.toml."""
        prepared = self.data.prepared
        return {
            "noise_multiplier": self.multiplier,
            "steps": self.steps,
            "dataset_size": len(prepared.train),
            "test_size": len(prepared.test),
            "generated": self.data.generated,
            "expected_batch": self.expected_batch,
            "physical_batch": self.physical_batch,
            "sampler": str(self.sampler),
            "trainable": sum(p.numel() for p in self.problem.model.parameters() if p.requires_grad),
            "classes": prepared.classes if self.problem.classifies else None,
            "query": repr(self.create_query()),
            "started": self.started,
            "columns": self.data.encoder.titles or None,
            "class_names": list(self.data.encoder.classes) or None,
            "model_file": file_digest(self.settings.recipe.model),
            "clipping_file": file_digest(self.settings.recipe.weigher or ""),
        }

    def create_private(self, seed: int | None, ledger: Ledger, ranks: Ranks | None) -> Private:
        """Creates the `Private` that trains the job's model."""
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

    @property
    def _parts(self) -> RunParts:
        return _parts_of(self.settings, self.problem, self.data)

    def config_table(self) -> dict[str, Any]:
        """Returns the content of the job's config.toml."""
        versions = {
            name: value
            for name, value in current_environment().items()
            if name in ("sordino", "python", "torch", "numpy")
        }
        return {**self.settings.table(), "resolved": self.resolved_table(), "versions": versions}


def assemble_job(settings: Settings, say: Say, earlier_resolved: Mapping[str, Any] | None = None) -> Job:
    """Assembles the job of a run from its settings; `earlier_resolved` is what an earlier process resolved, which is
    then not calibrated again.
    """
    job = _build_job(settings, say, earlier_resolved)
    set_noise_scale(job.problem.optimizer, job.create_query(), job.expected_batch)
    return job


def _refuse_unfit_diagnostics(settings: Settings, problem: Problem) -> None:
    """Refuses diagnostics in the settings that this job cannot have."""
    diagnostics = parse_names(settings.options.diagnose)
    if "classes" in diagnostics and not problem.classifies:
        raise ValueError(f"diagnose={settings.options.diagnose!r}: these records have no classes; leave them out")
    if "substeps" in diagnostics and words_of(settings.recipe)["query"] != "projected":
        raise ValueError(
            f"diagnose={settings.options.diagnose!r}: substeps are those of --query projected; leave them out"
        )


def _build_job(settings: Settings, say: Say, earlier_resolved: Mapping[str, Any] | None) -> Job:
    """Assembles a job: reads the data, builds model, sampler and query, and calibrates noise and number of steps."""
    data = load_run_data(settings.recipe, settings.options.records, say, settings.own)
    settings = resolve_batch_and_epochs(settings, data.prepared.drawn)
    recipe, options = settings.recipe, settings.options
    if recipe.ranges is not None and not data.prepared.unbounded:  # no column is without bounds
        recipe = replace(recipe, preparation=replace(recipe.preparation, ranges=None))
        settings = replace(settings, recipe=recipe)
    # Model, query and sampler come from public settings and from the shape of the data alone.
    problem = build(recipe, data.prepared, options.init_seed)
    _refuse_unfit_diagnostics(settings, problem)
    record_count = data.prepared.drawn
    parts = _parts_of(settings, problem, data)
    drawn = parts.create_sampler()
    drawn.expected_size(record_count)  # refuses what cannot be drawn
    # A run that goes on keeps the noise and the steps it began with.
    if earlier_resolved is not None:
        multiplier = validate.non_negative("noise_multiplier", earlier_resolved.get("noise_multiplier"))
        steps = validate.count("steps", earlier_resolved.get("steps"))
        physical_batch = validate.count("physical_batch", earlier_resolved.get("physical_batch"))
        return Job(
            settings, data, problem, drawn, multiplier, steps, physical_batch, str(earlier_resolved.get("started"))
        )
    # Calibrate the noise to the target ε, unless the recipe says it.
    if recipe.noise_multiplier is not None:
        multiplier = recipe.noise_multiplier
    else:
        assert recipe.epsilon is not None  # a recipe has one of the two
        say(f"calibrating the noise to ε = {recipe.epsilon:g}")
        multiplier = calibrate_noise(parts.event, recipe.epsilon, recipe.delta)
    # A budget cuts the number of steps at that noise.
    steps = recipe.steps
    if options.budget is not None:
        steps = calibrate_steps(lambda count: parts.event(multiplier, count), steps, options.budget, recipe.delta)
    physical_batch = options.physical_batch or _choose_physical_batch(
        recipe, problem, data, drawn.expected_size(record_count)
    )
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return Job(settings, data, problem, drawn, multiplier, steps, physical_batch, started)


def _choose_physical_batch(recipe: Recipe, problem: Problem, data: RunData, lot: float) -> int:
    """Returns how many records a job processes at once; for larger privacy units, how many units, each with its own
    rows.
    """
    rows = 1 if data.prepared.units is None else recipe.unit_records
    batch = max(1, choose_by_shapes(problem.model, data.prepared.train.tensors[0], lot * rows) // rows)
    return batch if ranks_of(None) is None else min(batch, choose_for_ranks(0, lot))


def _parts_of(settings: Settings, problem: Problem, data: RunData) -> RunParts:
    """Returns the parts of the run by the words of its recipe."""
    records = data.prepared.drawn
    return RunParts(settings.recipe, problem, records, settings.parameters, settings.options.non_private)
