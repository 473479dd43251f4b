"""The search for the clip bound on CIFAR-10, for each learning rate.

source     001, T4.4, lines 526–551
setting    best C for each learning rate of DP-SGD on CIFAR-10
reduced    see sordino/lab/thesis.py
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from sordino.lab.curves import mean
from sordino.lab.experiment import Compared, Experiment, Finding, Outcome
from sordino.lab.plan import Plan
from sordino.lab.sweep import Sweep
from sordino.lab.thesis import BEST, CIFAR, CIFAR_MIDDLE, cifar, label
from sordino.lab.trained import Trained
from sordino.lab.workbench import Workbench

RATES = {label("DP-SGD", rate): rate for rate in (1.0, 0.1, 0.01)}


def values(bench: Workbench, way: str) -> Sequence[float]:
    """Bounds."""
    return bench.pick(
        (1.0,), (0.3, 1.0, 5.0, 10.0), (0.3, 1.0, 2.5, 5.0, 10.0), (0.5, 1.0, 2.5, 5.0, 7.5, 9.5, 10.0, 12.0)
    )


def plan(bench: Workbench, way: str, value: float) -> Plan:
    """One run."""
    return cifar(bench, "DP-SGD", RATES[way], value)


SWEEP = Sweep("clip bound C", values, plan, tuple(RATES), "CIFAR-10")


def _least(row: Mapping[float, Trained]) -> float:
    """The bound with the least loss."""
    return min(row, key=lambda value: mean(row[value], "test_loss"))


def run(bench: Workbench) -> Outcome:
    """Final accuracy against C, a curve for each rate."""
    found = SWEEP.outcome(bench)
    grid = SWEEP.trained(bench)
    best = {RATES[way]: _least(row) for way, row in grid.items()}
    rows = [Compared(f"best C at lr {rate:g}, by loss", best[rate], BEST[rate], "T4.4, 001:543") for rate in best]
    finding = Finding(
        "lr 1 → C 1, 0.1 → 9.5, 0.01 → 10",
        "001:543",
        bench.judged(best[1.0] <= best[0.1] <= best[0.01]),
        ", ".join(f"lr {rate:g} → C {bound:g}" for rate, bound in best.items()),
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
