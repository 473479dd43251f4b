"""Test accuracy of the recipes over seeds, by the product itself.

    python -m bench.accuracy --recipe mnist --epsilon 3 --seeds 0 1 2
    python -m bench.accuracy --table

Every run is `sordino.fit` of the recipe as it stands in `sordino.app.runs.known_recipes`: calibration, private
normalisation and all steps in one ledger, the claim by PLD. The recipes' numbers were fixed on held-out training
images before any run here. Results are kept in bench/results/accuracy.json, a row per recipe and ε, the runs of
further seeds added to those that are there; a row whose recipe has changed is begun anew.
"""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import tyro

import sordino as sd
from sordino.app.runs import RECIPES, Recipe, from_table
from sordino.app.runs.known_recipes import row_name
from sordino.app.runs.recipe import MEASURED

RESULTS = Path(__file__).parent / "results" / "accuracy.json"

TARGETS: dict[str, float] = {
    "adult ε=1": 84.5,
    "mnist ε=1": 98.0,
    "mnist ε=2": 98.3,
    "mnist ε=3": 98.5,
    "fashion-mnist ε=1": 87.9,
    "fashion-mnist ε=2": 89.0,
    "fashion-mnist ε=3": 89.5,
    "cifar10 ε=3": 65.0,
    "cifar10-imagenet ε=1": 84.0,
    "cifar10-imagenet ε=2": 85.0,
    "cifar10-imagenet ε=3": 86.0,
    "mnist-opacus-1 σ=0.7": 97.09,
    "mnist-opacus-2 σ=1.1": 96.78,
    "mnist-opacus-3 σ=1.3": 94.63,
}
"""Percent: what was aimed at; for the settings of Opacus, what its example published over ten runs."""


@dataclass(frozen=True)
class Command:
    """Run recipes on their test sets, or print the table of what was measured."""

    recipe: str | None = None
    """A name of `sordino recipes`; all of its ε unless one is given."""
    epsilon: float | None = None
    seeds: tuple[int, ...] = field(default=(0, 1, 2))
    table: bool = False
    """Print the table and run nothing."""

    def run(self) -> None:
        """Measures, or prints the table."""
        if not self.table:
            chosen = [r for r in RECIPES if r.name == self.recipe and self.epsilon in (None, r.epsilon)]
            if not chosen:
                raise SystemExit(
                    f"recipe={self.recipe!r}, epsilon={self.epsilon}: no such recipe; see `sordino recipes`"
                )
            for recipe in chosen:
                for seed in self.seeds:
                    measure(recipe, seed)
        print(table(read_results()))  # noqa: T201


def comparable_settings(recipe: Recipe) -> dict[str, Any]:
    """Returns the recipe's fields without measured figures and remarks."""
    return {name: value for name, value in recipe.table().items() if name not in (*MEASURED, "tuned")}


def is_measured_with(recipe: Recipe, row: dict[str, Any]) -> bool:
    """Returns whether a row was measured with this recipe; fields that did not exist then had their defaults."""
    return comparable_settings(from_table(row["recipe"])) == comparable_settings(recipe)


def read_results() -> dict[str, Any]:
    """Returns what was measured so far."""
    return dict(json.loads(RESULTS.read_text())) if RESULTS.exists() else {}


def measure(recipe: Recipe, seed: int) -> None:
    """Makes one run and adds it to its row; the file is written after each."""
    wall, cpu = time.perf_counter(), time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        history = sd.fit(recipe, seed=seed, init_seed=seed, out=Path(folder) / "run")
    if not history.finished:
        raise SystemExit(f"{row_name(recipe)}, seed {seed}: the run was stopped; nothing is kept of it")
    claim, rows = history.claim, read_results()  # read only now: another process may have written meanwhile
    row = rows.get(row_name(recipe))
    if row is None or not is_measured_with(recipe, row):
        row = {"recipe": comparable_settings(recipe), "runs": []}
    row["runs"] = [run for run in row["runs"] if run["seed"] != seed]
    run = {
        "seed": seed,
        "accuracy": history.test_accuracy,
        "epsilon": claim.epsilon if isinstance(claim, sd.Guarantee) else None,
        "event": str(claim.event) if isinstance(claim, sd.Guarantee) else None,
        "seconds": round(time.perf_counter() - wall, 1),
        "cpu_seconds": round(time.process_time() - cpu, 1),
        "threads": torch.get_num_threads(),
    }
    row["runs"].append(run)
    row["runs"].sort(key=lambda run: run["seed"])
    row["command"] = f"python -m bench.accuracy --recipe {recipe.name}" + (
        "" if recipe.epsilon is None else f" --epsilon {recipe.epsilon:g}"
    )
    rows[row_name(recipe)] = row
    RESULTS.write_text(json.dumps(dict(sorted(rows.items())), indent=1, ensure_ascii=False) + "\n")
    said = f"{row_name(recipe)} seed {seed}: {history.test_accuracy:.2%}, {run['cpu_seconds']} CPU-s"
    print(said, flush=True)  # noqa: T201


def figures_of_row(row: dict[str, Any]) -> tuple[float, float | None, int, float]:
    """Returns a row as `sordino.app.runs.known_recipes` holds it."""
    found = [run["accuracy"] for run in row["runs"]]
    spread = round(statistics.stdev(found), 5) if len(found) > 1 else None
    return (
        round(statistics.mean(found), 5),
        spread,
        len(found),
        round(statistics.mean(run["cpu_seconds"] for run in row["runs"])),
    )


def table(rows: dict[str, Any]) -> str:
    """Returns the results as a Markdown table."""
    lines = ["| recipe | aim | test accuracy, % | seeds | claimed ε | CPU-s a run |", "|---|---|---|---|---|---|"]
    for name, row in rows.items():
        runs = row["runs"]
        found = [100 * run["accuracy"] for run in runs]
        spread = f" ± {statistics.stdev(found):.2f}" if len(found) > 1 else ""
        spent = max((run["epsilon"] or float("inf")) for run in runs)
        seconds = statistics.mean(run["cpu_seconds"] for run in runs)
        aim = TARGETS.get(name)
        lines.append(
            f"| {name} | {'' if aim is None else f'{aim:g}'} | {statistics.mean(found):.2f}{spread} | {len(found)} "
            f"| {spent:.3f} | {seconds:.0f} |"
        )
    return "\n".join(lines)


if __name__ == "__main__":
    tyro.cli(Command, description=__doc__).run()
