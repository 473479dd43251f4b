"""Plans of training: one curve of a figure as a recipe, trained once for every seed.

    CurvePlan(label="sorted, lr 1", method="sorted", recipe="thesis-mnist", epochs=30, batch=250,
              given={"sampler": "sorted-top-k"})

The network that seed k starts from depends on k alone, so the methods compared start from identical networks.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sordino.app.runs import find
from sordino.app.runs.recipe import Recipe
from sordino.app.runs.settings import Settings, make_settings
from sordino_lab.experiment import ExperimentSize

_EVALUATIONS = 10
_CHECKPOINTS = 40
"""How many checkpoints a training of minutes or hours writes."""
_TINY = {"dataset": "spiral", "model": "mlp", "features": "none", "rate": 0.1, "steps": 3, "records": 200}
"""What any recipe becomes in the tests: the same words on a small problem."""
_CLEARED_IN_THE_RECIPE = ("normalise", "pca")
"""Fields that are switched off in the recipe itself, because no value of a flag does it."""
SIZES: Mapping[str, int] = {
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar10": 50_000,
    "digits": 10_000,
    "spiral": 2_000,
}
"""Training records of the data sets."""

# CPU seconds measured on one core of an AMD EPYC with AVX-512.
_SECONDS_PER_RECORD: Mapping[str, float] = {
    "linear": 3e-6,
    "hidden-1000": 8e-6,
    "mnist-net": 8e-6,
    "mlp": 8e-6,
    "mnist-cnn": 6.5e-5,
    "cifar-net": 3.7e-4,
    "efficientnet-end": 1e-3,
    "resnet18": 7e-3,
}
"""CPU seconds for each record of a lot, by model."""
_SECONDS_PER_RECORD_OTHERWISE = 1e-4
_SECONDS_PER_STEP = 1.6e-3
"""CPU seconds of a step whatever its lot: noise, optimizer, runtime checks."""
_SECONDS_TO_BEGIN = 8.0
"""CPU seconds before the first step, and for the evaluations."""
SEVERAL_SEEDS = 600.0
"""A row that takes less than this, in CPU seconds, is trained with all its seeds at the source's size; others with one."""


@dataclass(frozen=True, kw_only=True)
class CurvePlan:
    """One curve: a recipe, changed in some fields, over some epochs in lots of `batch`."""

    label: str
    method: str
    """The method whose colour the curve has."""
    recipe: str
    """A name of `sordino recipes`."""
    epochs: float | None = None
    batch: float | None = None
    """The expected lot; None: the recipe's rate."""
    records: int | None = None
    """How many of the first records are used; None: all."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Recipe` and `Options`."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    seeds: int = 1
    evaluations: int = _EVALUATIONS
    variant: int = 0

    def fields(self, size: ExperimentSize, seed: int) -> dict[str, Any]:
        """Returns the fields in which the training of one seed of a curve's plan differs from its recipe."""
        # Rates and steps follow from lots and epochs once the number of records is known.
        base = find(self.recipe)
        given: dict[str, Any] = dict(self.given)
        # A tiny run only shows that the code works: it has a small problem, without the preparations of the recipe.
        if size is ExperimentSize.TINY:
            given = {**given, **_TINY, **dict.fromkeys(_CLEARED_IN_THE_RECIPE)}
        else:
            # A source gives its lot in records; the rate that draws as many on average depends on how many there are.
            n = self.records or SIZES[str(given.get("dataset", base.dataset))]
            rate = min(1.0, self.batch / n) if self.batch is not None else base.rate
            given["rate"] = rate
            if self.epochs is not None:
                # Rounding may give no step at all for a fraction of an epoch, and a training needs at least one.
                given["steps"] = max(1, round(self.epochs / rate))
            if self.records is not None:
                given["records"] = self.records
        # Evaluations are spread evenly over the steps; a tiny run is evaluated at its end alone.
        steps = int(given.get("steps", base.steps))
        given["evaluate_every"] = max(1, steps // (1 if size is ExperimentSize.TINY else self.evaluations))
        # Both seeds move together, so that seeds differ in the initial parameters as well as in lots and noise.
        return {**given, "seed": seed, "init_seed": seed}

    def settings(self, size: ExperimentSize, seed: int) -> Settings:
        """Returns the settings of the training of one seed of a curve's plan."""
        given = self.fields(size, seed)
        base: str | Recipe = self.recipe
        # A flag cannot switch these off, so the recipe itself is changed.
        cleared = {name: None for name in _CLEARED_IN_THE_RECIPE if name in given and given[name] is None}
        if cleared:
            base = find(self.recipe).but(**cleared)
        steps = int(given.get("steps", find(self.recipe).steps))
        # Checkpoints change no result. A training of seconds has none between its first and its last step.
        is_long = size in (ExperimentSize.MIDDLE, ExperimentSize.FULL)
        checkpoint_every = max(1, steps // _CHECKPOINTS) if is_long else steps
        return make_settings(base, {**given, "checkpoint_every": checkpoint_every}, dict(self.parameters))

    def command(self, size: ExperimentSize, seed: int = 0) -> str:
        """Returns the command that repeats the training of one seed of a curve's plan, with the same evaluations."""
        # Only what differs from the recipe is typed.
        words = ["sordino", "train", self.recipe]
        given = self.fields(size, seed)
        # A field that is None has no spelling as a flag; those the recipe sets are taken away by `--without` below.
        for name, value in given.items():
            if value is not None:
                words += _write_flag(name, value)
        left_out = [name for name in _CLEARED_IN_THE_RECIPE if name in given and given[name] is None]
        words += ["--without", *left_out] if left_out else []
        # `repr` keeps every digit, so the typed command repeats the training bit for bit.
        for name, value in self.parameters.items():
            words += ["--parameter", f"{name}={value!r}"]
        return shlex.join(words)


def _write_flag(name: str, value: Any) -> list[str]:
    """Returns a field of a curve's plan as it is typed at the command line.

    >>> _write_flag("widths", (64, 32)), _write_flag("rate", 0.1), _write_flag("non_private", True)
    (['--widths', '64', '32'], ['--rate', '0.1'], ['--non-private'])
    """
    flag = name.replace("_", "-")
    # Booleans come first: they are flags without a value, and `--no-…` is how a default of yes is turned off.
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, tuple | list):
        return [f"--{flag}", *map(repr, value)]
    # `repr` of a float reads back as the same number; `str` of a text has no quotes, which the shell would pass on.
    return [f"--{flag}", repr(value) if isinstance(value, float) else str(value)]


def expected_seconds(settings: Settings) -> float:
    """Returns the CPU seconds that a training of a curve's plan will roughly take on one core.

    A training costs what its records cost, step by step. Lots by rank also cost the gradient lengths of all records that
    an epoch has left, half of them on average, or of those that are remeasured and of all once an epoch.
    """
    # A lookahead computes gradients twice a step.
    recipe = settings.recipe
    records = settings.options.records or SIZES.get(recipe.dataset, 10_000)
    per_record = _SECONDS_PER_RECORD.get(recipe.model, _SECONDS_PER_RECORD_OTHERWISE)
    passes = 2.0 if recipe.query in ("projected", "noisy-lookahead", "optimistic-lookahead") else 1.0
    lot = recipe.privacy.rate * records * per_record * passes
    ranked = 0.5 * records if (recipe.sampler or "").startswith("sorted") else 0.0
    if ranked and settings.parameters.get("remeasured"):
        measured = settings.parameters["remeasured"] * recipe.privacy.rate * records
        ranked = min(ranked, measured + recipe.privacy.rate * records)
    ranking = ranked * per_record
    return _SECONDS_TO_BEGIN + recipe.optimisation.steps * (_SECONDS_PER_STEP + lot + ranking)
