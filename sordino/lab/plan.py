"""A plan: one curve of a figure as a recipe, trained once for every seed, from the same initial networks as its neighbours.

    Plan("sorted, lr 1", "sorted", "thesis-mnist", epochs=30, batch=250, given={"sampler": "sorted-top-k"})

The network that seed k starts from depends on k alone, so the methods compared start from identical ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sordino.lab.size import Size
from sordino.runs import find
from sordino.runs.recipe import Recipe
from sordino.runs.settings import Settings, settle

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
class Plan:
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

    def fields(self, size: Size, seed: int) -> dict[str, Any]:
        """What differs from the recipe."""
        base = find(self.recipe)
        given: dict[str, Any] = dict(self.given)
        if size is Size.TINY:
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
        given["evaluate_every"] = max(1, steps // (1 if size is Size.TINY else self.evaluations))
        return {**given, "seed": seed, "init_seed": seed}

    def settings(self, size: Size, seed: int) -> Settings:
        """The run of one seed."""
        given = self.fields(size, seed)
        base: Recipe = find(self.recipe)
        cleared = {name: None for name in _ALONE if name in given and given[name] is None}
        if cleared:
            base = base.but(**cleared)
        steps = int(given.get("steps", base.steps))
        # Checkpoints change no result. A training of seconds has none between its first and its last step.
        checkpoint_every = max(1, steps // _CHECKPOINTS) if size in (Size.MIDDLE, Size.FULL) else steps
        return settle(base, {**given, "checkpoint_every": checkpoint_every}, dict(self.parameters))

    def command(self, size: Size) -> str:
        """What repeats it by hand."""
        given = self.fields(size, 0)
        words = [f"sordino train {self.recipe}"]
        for name, value in given.items():
            if value is None or name in ("seed", "init_seed", "evaluate_every"):
                continue
            flag = f"--{name.replace('_', '-')}"
            words.append(
                flag if value is True else f"{flag} {value:g}" if isinstance(value, float) else f"{flag} {value}"
            )
        words += [f"--parameter {name}={value:g}" for name, value in self.parameters.items()]
        return " ".join(words)
