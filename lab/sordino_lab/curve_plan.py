"""A plan: one curve of a figure as a recipe, trained once for every seed, from the same initial networks as its neighbours.

    Plan("sorted, lr 1", "sorted", "thesis-mnist", epochs=30, batch=250, given={"sampler": "sorted-top-k"})

The network that seed k starts from depends on k alone, so the methods compared start from identical ones.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sordino.app.runs import find
from sordino.app.runs.recipe import Recipe
from sordino.app.runs.settings import Settings, make_settings
from sordino_lab.size import ExperimentSize

_EVALUATIONS = 10
_CHECKPOINTS = 40
"""So many in a training of minutes or hours."""
_TINY = {
    "dataset": "spiral",
    "model": "mlp",
    "features": "none",
    "rate": 0.1,
    "steps": 3,
    "records": 200,
}
"""What any recipe becomes in the tests: the same words on a small problem."""
_ALONE = ("normalise", "pca")
SIZES: Mapping[str, int] = {
    "mnist": 60_000,
    "fashion-mnist": 60_000,
    "cifar10": 50_000,
    "digits": 10_000,
    "spiral": 2_000,
}
"""Training records of the data sets."""


@dataclass(frozen=True, kw_only=True)
class CurvePlan:
    """One curve: a recipe, changed in some fields, over some epochs in lots of `batch`."""

    label: str
    method: str
    """Whose colour it has."""
    recipe: str
    """Of `sordino recipes`, or the name of one built here."""
    epochs: float | None = None
    batch: float | None = None
    """Expected lot; None: the recipe's rate."""
    records: int | None = None
    """Only the first so many; None: all."""
    given: Mapping[str, Any] = field(default_factory=dict)
    """Fields of `Recipe` and `Options`."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    seeds: int = 1
    evaluations: int = _EVALUATIONS
    variant: int = 0

    def fields(self, size: ExperimentSize, seed: int) -> dict[str, Any]:
        """What differs from the recipe."""
        base = find(self.recipe)
        given: dict[str, Any] = dict(self.given)
        if size is ExperimentSize.TINY:
            given = {**given, **_TINY, **dict.fromkeys(_ALONE)}
        else:
            n = self.records or SIZES[str(given.get("dataset", base.dataset))]
            rate = min(1.0, self.batch / n) if self.batch is not None else base.rate
            given["rate"] = rate
            if self.epochs is not None:
                given["steps"] = max(1, round(self.epochs / rate))
            if self.records is not None:
                given["records"] = self.records
        steps = int(given.get("steps", base.steps))
        given["evaluate_every"] = max(1, steps // (1 if size is ExperimentSize.TINY else self.evaluations))
        return {**given, "seed": seed, "init_seed": seed}

    def settings(self, size: ExperimentSize, seed: int) -> Settings:
        """The run of one seed."""
        given = self.fields(size, seed)
        base: str | Recipe = self.recipe
        cleared = {name: None for name in _ALONE if name in given and given[name] is None}
        if cleared:
            base = find(self.recipe).but(**cleared)
        steps = int(given.get("steps", find(self.recipe).steps))
        # Checkpoints change no result. A training of seconds has none between its first and its last step.
        checkpoint_every = (
            max(1, steps // _CHECKPOINTS) if size in (ExperimentSize.MIDDLE, ExperimentSize.FULL) else steps
        )
        return make_settings(base, {**given, "checkpoint_every": checkpoint_every}, dict(self.parameters))

    def command(self, size: ExperimentSize, seed: int = 0) -> str:
        """Returns the command that repeats the training of one seed, with the same evaluations."""
        words = ["sordino", "train", self.recipe]
        given = self.fields(size, seed)
        for name, value in given.items():
            if value is not None:
                words += _flag(name, value)
        left_out = [name for name in _ALONE if name in given and given[name] is None]
        words += ["--without", *left_out] if left_out else []
        for name, value in self.parameters.items():
            words += ["--parameter", f"{name}={value!r}"]
        return shlex.join(words)


def _flag(name: str, value: Any) -> list[str]:
    """Returns a field as it is typed at the command line.

    >>> _flag("widths", (64, 32)), _flag("rate", 0.1), _flag("non_private", True)
    (['--widths', '64', '32'], ['--rate', '0.1'], ['--non-private'])
    """
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return [f"--{flag}" if value else f"--no-{flag}"]
    if isinstance(value, tuple | list):
        return [f"--{flag}", *map(repr, value)]
    return [f"--{flag}", repr(value) if isinstance(value, float) else str(value)]
