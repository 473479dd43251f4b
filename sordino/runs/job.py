"""Everything a run needs, made from its settings: data, model, sampler, noise, number of steps. Nothing is released yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from sordino import events, validate
from sordino.accounting import PLD
from sordino.algorithms.dpsgd import Query
from sordino.algorithms.dry_run import dry_run
from sordino.declared import RunNumbers
from sordino.door import claims
from sordino.door.claims import Claim
from sordino.events import Event
from sordino.gradients import Backend, Captured, PerformanceOptions
from sordino.gradients.physical_batch import physical_batch_by_shapes
from sordino.penalty import L2
from sordino.runs.cost import before, noise_for, steps_for
from sordino.runs.environment import here
from sordino.runs.methods import method, plain, query_of
from sordino.runs.problem import Problem, build, tell_noise
from sordino.runs.run_data import RunData, Say, run_data
from sordino.runs.samplers import sampler
from sordino.runs.settings import Settings
from sordino.sampling.sampler import Sampler

_TIMES = 20
"""Evaluations and checkpoints in a run, unless asked otherwise."""


@dataclass(frozen=True, eq=False)
class Job:
    """A run that could begin."""

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
        """The public number that sums are divided by."""
        return self.sampler.expected(len(self.data.prepared.train))

    @property
    def evaluate_every(self) -> int:
        """Steps."""
        return self.settings.options.evaluate_every or max(1, self.steps // _TIMES)

    @property
    def checkpoint_every(self) -> int:
        """Steps."""
        return self.settings.options.checkpoint_every or max(1, self.steps // _TIMES)

    def query(self) -> Query:
        """What is asked of each lot."""
        return _query(self.settings, self.problem, self.multiplier, len(self.data.prepared.train))

    def backend(self) -> Backend:
        """How per-sample gradients are computed; nothing is measured, so that a replay computes the same bits."""
        return _backend(self.settings, self.problem, len(self.data.prepared.train))

    def penalty(self) -> L2 | None:
        """The L2 penalty inside each record's gradient, if there is one."""
        strength = self.settings.recipe.penalty
        return L2(strength) if strength else None

    def event(self) -> Event:
        """What the whole run will have done to the data."""
        return _event(self.settings, self.data, self.sampler, self.query(), self.steps, self.backend())

    def planned(self) -> Claim:
        """What can be claimed when all of it is done."""
        numbers = sum(p.numel() for p in self.problem.model.parameters())
        return claims.claim(self.event(), self.settings.recipe.delta, PLD(), coordinates=numbers)

    def resolved(self) -> dict[str, Any]:
        """What was calibrated and counted, for config.toml."""
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
            "classes": prepared.classes,
            "query": repr(self.query()),
            "started": self.started,
        }

    def config(self) -> dict[str, Any]:
        """config.toml."""
        versions = {name: value for name, value in here().items() if name in ("sordino", "python", "torch", "numpy")}
        return {**self.settings.table(), "resolved": self.resolved(), "versions": versions}


def assemble(settings: Settings, say: Say, earlier: Mapping[str, Any] | None = None) -> Job:
    """The job; `earlier` is what an earlier process resolved, which is then not calibrated again."""
    job = _assembled(settings, say, earlier)
    tell_noise(job.problem.optimizer, job.query(), job.expected_batch)
    return job


def _assembled(settings: Settings, say: Say, earlier: Mapping[str, Any] | None) -> Job:
    recipe, options = settings.recipe, settings.options
    loaded = run_data(recipe, options.records, say)
    problem = build(recipe, loaded.prepared, options.init_seed)
    n = len(loaded.prepared.train)
    drawn = _sampler(settings, problem, n)
    drawn.expected(n)  # refuses what cannot be drawn

    backend = _backend(settings, problem, n)

    def event_of(multiplier: float, steps: int) -> Event:
        return _event(settings, loaded, drawn, _query(settings, problem, multiplier, n), steps, backend)

    if earlier is not None:
        multiplier = validate.non_negative("noise_multiplier", earlier.get("noise_multiplier"))
        steps = validate.count("steps", earlier.get("steps"))
        physical = validate.count("physical_batch", earlier.get("physical_batch"))
        return Job(settings, loaded, problem, drawn, multiplier, steps, physical, str(earlier.get("started")))
    if recipe.noise_multiplier is not None:
        multiplier = recipe.noise_multiplier
    else:
        assert recipe.epsilon is not None  # a recipe has one of the two
        say(f"calibrating the noise to ε = {recipe.epsilon:g}")
        multiplier = noise_for(lambda s: event_of(s, recipe.steps), recipe.epsilon, recipe.delta)
    steps = recipe.steps
    if options.budget is not None:
        steps = steps_for(lambda count: event_of(multiplier, count), steps, options.budget, recipe.delta)
    physical = options.physical_batch or physical_batch_by_shapes(
        problem.model, loaded.prepared.train.tensors[0], drawn.expected(n)
    )
    started = datetime.now(UTC).isoformat(timespec="seconds")
    return Job(settings, loaded, problem, drawn, multiplier, steps, physical, started)


def _numbers(
    settings: Settings, problem: Problem, multiplier: float, records: int
) -> tuple[RunNumbers, dict[str, float]]:
    """What a method is built from: public numbers of the run, and the method's own parameters."""
    recipe = settings.recipe
    sizes = [p.numel() for p in problem.model.parameters() if p.requires_grad]
    run = RunNumbers(
        bound=recipe.bound,
        multiplier=multiplier,
        rate=recipe.rate,
        steps=recipe.steps,
        records=records,
        tensors=len(sizes),
        numbers=sum(sizes),
        learning_rate=problem.learning_rate,
    )
    return run, method(recipe.method).complete(run, settings.parameters)


def _query(settings: Settings, problem: Problem, multiplier: float, records: int) -> Query:
    if settings.options.non_private:
        return plain()
    return query_of(method(settings.recipe.method), *_numbers(settings, problem, multiplier, records))


def _sampler(settings: Settings, problem: Problem, records: int) -> Sampler:
    own, asked = method(settings.recipe.method).sampler, settings.options.sampler
    if own is None:
        return sampler(asked or "poisson", settings.recipe.rate, records)
    if asked is not None:
        raise ValueError(
            f"sampler={asked!r}: the method {settings.recipe.method} draws its lots in its own way; leave it out"
        )
    return own(*_numbers(settings, problem, 1.0, records))


def _backend(settings: Settings, problem: Problem, records: int) -> Backend:
    own = method(settings.recipe.method).backend
    if own is None or settings.options.non_private:
        return Captured(PerformanceOptions(measure=False))
    return own(*_numbers(settings, problem, 1.0, records))


def _event(settings: Settings, loaded: RunData, drawn: Sampler, query: Query, steps: int, backend: Backend) -> Event:
    n = len(loaded.prepared.train)
    return events.compose([*before(settings.recipe), dry_run(query, drawn, n, steps, drawn.expected(n), backend)])
