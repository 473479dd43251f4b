"""Accuracy of variants of a recipe on held-out training images, by which its fields are chosen.

    python -m bench.held_out --recipe mnist-opacus-3 --change pixel_mean=0.5 pixel_deviation=0.5 --seeds 0 1
    python -m bench.held_out --recipe mnist-opacus-3 --averages 0.99 0.999     the averages of one run, and its last weights

The last 10,000 training images take the place of the test set, which is not read; the run trains on the others at the
recipe's rate. Seeds begin at 1000, so that no seed is used here and in `bench.accuracy`. Results are kept in
bench/results/held_out.json, a row per variant.
"""

from __future__ import annotations

import json
import statistics
import tempfile
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import tyro
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.app.runs import Recipe, find, job, training_loop
from sordino.app.runs.declared_file import OwnFile
from sordino.app.runs.encoded_records import Prepared
from sordino.app.runs.evaluate import evaluate
from sordino.app.runs.given_data import GivenData
from sordino.app.runs.problem import cross_entropy
from sordino.app.runs.run_data import Say, load_run_data
from sordino.optim import Average

RESULTS = Path(__file__).parent / "results" / "held_out.json"
HELD_OUT = 10_000
_FIRST_SEED = 1000


@dataclass(frozen=True)
class Command:
    """Run a variant of a recipe on held-out images, or print what was measured."""

    recipe: str = ""
    """A name of `sordino recipes`."""
    epsilon: float | None = None
    change: tuple[str, ...] = ()
    """Fields in place of the recipe's own: name=number, or name=word."""
    averages: tuple[float, ...] = ()
    """Decays of averages of the parameters that are tested as well."""
    seeds: tuple[int, ...] = field(default=(0, 1))
    table: bool = False
    """Print the table and run nothing."""

    def run(self) -> None:
        """Measures, or prints the table."""
        if not self.table:
            changes = dict(one.split("=", 1) for one in self.change)
            recipe = find(self.recipe, self.epsilon).but(**{name: _value(value) for name, value in changes.items()})
            said = [self.recipe, *([] if self.epsilon is None else [f"ε={self.epsilon:g}"]), *self.change]
            for seed in self.seeds:
                measure(" ".join(said), recipe, _FIRST_SEED + seed, self.averages)
        print(table(read_results()))  # noqa: T201


def _value(said: str) -> int | float | str:
    """Returns the text as a number if it is one."""
    for kind in (int, float):
        try:
            return kind(said)
        except ValueError:
            pass
    return said


def split_held_out(recipe: Recipe, limit: int | None, say: Say, own: OwnFile | GivenData | None = None) -> Prepared:
    """Returns the recipe's data with the last training images as its test set."""
    found = load_run_data(recipe, limit, say, own)
    x, y = found.train.tensors
    train, test = TensorDataset(x[:-HELD_OUT], y[:-HELD_OUT]), TensorDataset(x[-HELD_OUT:], y[-HELD_OUT:])
    before = found.before_features or found.train.tensors
    return replace(found, train=train, test=test, before_features=tuple(each[:-HELD_OUT] for each in before))


def read_results() -> dict[str, Any]:
    """Returns what was measured so far."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


class Averages(Average):
    """Keeps several averages of the parameters beside the last ones, so that one run tells of all."""

    decays: tuple[float, ...] = ()
    last: Averages

    def __init__(self, model: nn.Module, decay: float) -> None:
        super().__init__(model, 0.0, warm=False)
        self.model = model
        self.beside = {decay: Average(model, decay) for decay in self.decays}
        Averages.last = self

    def update(self) -> None:
        """Updates all averages."""
        super().update()
        for each in self.beside.values():
            each.update()


def measure(name: str, recipe: Recipe, seed: int, averages: tuple[float, ...]) -> None:
    """Makes one run and adds it, and those of its averages, to their rows."""
    job.load_run_data = split_held_out  # type: ignore[attr-defined]
    if averages:
        training_loop.Average, Averages.decays = Averages, averages  # type: ignore[assignment, attr-defined]
        recipe = recipe.but(ema=averages[0])
    with tempfile.TemporaryDirectory() as folder:
        history = sd.fit(recipe, seed=seed, init_seed=seed, out=Path(folder) / "run")
    if not history.finished:
        raise SystemExit(f"{name}, seed {seed}: the run was stopped; nothing is kept of it")
    found = {f"{name} ema=0" if averages else name: history.test_accuracy}
    if averages:
        prepared = split_held_out(recipe, None, lambda _: None)
        for decay, average in Averages.last.beside.items():
            with average.swap_temporarily():
                said = evaluate(Averages.last.model, prepared.test, cross_entropy, prepared.classes)
                found[f"{name} ema={decay:g}"] = said.accuracy
    rows = read_results()  # read only now: another process may have written meanwhile
    for variant, accuracy in found.items():
        rows.setdefault(variant, {})[str(seed)] = accuracy
    RESULTS.write_text(json.dumps(dict(sorted(rows.items())), indent=1, ensure_ascii=False) + "\n")


def table(rows: dict[str, Any]) -> str:
    """Returns the results as a Markdown table."""
    lines = ["| variant | held-out accuracy, % | seeds |", "|---|---|---|"]
    for name, row in rows.items():
        found = [100 * accuracy for accuracy in row.values()]
        lines.append(
            f"| {name} | {statistics.mean(found):.2f} ({', '.join(f'{a:.2f}' for a in found)}) | {len(found)} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    tyro.cli(Command, description=__doc__).run()
