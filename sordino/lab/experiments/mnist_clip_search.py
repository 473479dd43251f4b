"""The search for the clip bound on MNIST.

source     001, text to T4.2, lines 447–449
setting    C swept for DP-SGD on MNIST at lr 0.1
reduced    see sordino/lab/thesis.py
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino.lab.curves import mean
from sordino.lab.experiment import Compared, Experiment, Finding, Outcome
from sordino.lab.plan import Plan
from sordino.lab.sweep import Grid, Sweep
from sordino.lab.thesis import MNIST, MNIST_MIDDLE, mnist
from sordino.lab.workbench import Workbench


def values(bench: Workbench, way: str) -> Sequence[float]:
    """Bounds."""
    return bench.pick(
        (1.0,), (0.5, 1.0, 2.5, 7.5, 20.0), (0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0), (0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0)
    )


def plan(bench: Workbench, way: str, value: float) -> Plan:
    """One run."""
    return mnist(bench, "DP-SGD", 0.1, value)


SWEEP = Sweep("clip bound C", values, plan, ("DP-SGD",), "MNIST, lr 0.1")


def judge(bench: Workbench, grid: Grid) -> list[Finding]:
    """The source's choice."""
    found = {value: mean(one) for value, one in grid["DP-SGD"].items()}
    best = max(found, key=lambda value: found[value])
    return [
        Finding(
            "at learning rate 0.1, C = 7.5 has the best possible values",
            "001:449",
            bench.judged(found.get(7.5, 0.0) >= found[best] - 0.5) if bench.tells else None,
            f"best here: C = {best:g} with {found[best]:.1f} %; C = 7.5 has {found.get(7.5, 0.0):.1f} %",
        )
    ]


def run(bench: Workbench) -> Outcome:
    """Final accuracy against C."""
    found = SWEEP.outcome(bench, judge)
    grid = SWEEP.trained(bench)["DP-SGD"]
    best = max(grid, key=lambda value: mean(grid[value]))
    return Outcome(
        found.panels,
        [Compared("best C at lr 0.1", best, 7.5, "001:449")],
        found.findings,
        found.notes,
        found.commands,
        found.numbers,
    )


EXPERIMENT = Experiment(
    id="mnist-clip-search",
    source="001",
    figure="text to T4.2",
    lines="447–449",
    title="The search for MNIST's bound",
    shows="DP-SGD's best bound at lr 0.1 is large",
    setting="C swept for DP-SGD on MNIST at lr 0.1",
    reduced=MNIST,
    middle=MNIST_MIDDLE,
    nouns=("Flat",),
    terms="Hyperparametersuche",
    seconds=30,
    run=run,
    plans=SWEEP.plans,
)
