"""The search for the clip bound on CIFAR-10, for each learning rate.

source     001, T4.4, lines 526–551
setting    best C for each learning rate of DP-SGD on CIFAR-10
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Compared, Experiment, Finding, Outcome
from sordino_lab.sweep import Sweep
from sordino_lab.thesis import BEST, CIFAR, CIFAR_MIDDLE, cifar, label
from sordino_lab.trained import TrainedCurve
from sordino_lab.training_curves import mean
from sordino_lab.workbench import Workbench

_AS_GOOD = 0.01
RATES = {label("DP-SGD", rate): rate for rate in (1.0, 0.1, 0.01)}


def values(bench: Workbench, way: str) -> Sequence[float]:
    """Bounds."""
    return bench.pick(
        (1.0,), (0.3, 1.0, 5.0, 10.0), (0.3, 1.0, 2.5, 5.0, 10.0), (0.5, 1.0, 2.5, 5.0, 7.5, 9.5, 10.0, 12.0)
    )


def plan(bench: Workbench, way: str, value: float) -> CurvePlan:
    """One run."""
    return replace(cifar(bench, "DP-SGD", RATES[way], value), label=f"{way}, C = {value:g}")


SWEEP = Sweep("clip bound C", values, plan, tuple(RATES), "CIFAR-10")


def _least(row: Mapping[float, TrainedCurve]) -> float:
    """The bound with the least loss."""
    return min(row, key=lambda value: mean(row[value], "test_loss"))


def run(bench: Workbench) -> Outcome:
    """Final accuracy against C, a curve for each rate."""
    found = SWEEP.outcome(bench)
    grid = SWEEP.trained(bench)
    best = {RATES[way]: _least(row) for way, row in grid.items()}
    rows = [Compared(f"best C at lr {rate:g}, by loss", best[rate], BEST[rate], "T4.4, 001:543") for rate in best]
    # A bound is as good as the best of the grid if its loss is within 1 % of the least: one seed tells no finer.
    behind = {
        RATES[way]: mean(row[BEST[RATES[way]]], "test_loss") / mean(row[_least(row)], "test_loss") - 1
        for way, row in grid.items()
        if BEST[RATES[way]] in row
    }
    finding = Finding(
        "by loss, C = 1 is best at learning rate 1, 9.5 at 0.1 and 10 at 0.01",
        "001:543",
        bench.judged(all(gap <= _AS_GOOD for gap in behind.values())) if len(behind) == len(RATES) else None,
        "; ".join(
            f"lr {rate:g}: least loss at C = {bound:g}, {100 * behind.get(rate, math.nan):.1f} % above it at {BEST[rate]:g}"
            for rate, bound in best.items()
        ),
    )
    return Outcome(found.panels, rows, [finding], found.notes, found.commands, found.numbers)


EXPERIMENT = Experiment(
    id="cifar-clip-search",
    source="001",
    figure="T4.4",
    lines="526–551",
    title="The search for CIFAR-10's bounds",
    shows="the larger the learning rate, the smaller the best bound",
    setting="best C for each learning rate of DP-SGD on CIFAR-10",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Flat",),
    terms="Hyperparametersuche",
    seconds=45,
    run=run,
    plans=SWEEP.plans,
)
