"""The search for the clip bound on MNIST.

source     001, text to T4.2, lines 447–449
setting    C swept for DP-SGD on MNIST at lr 0.1
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Compared, Experiment, Finding, Outcome
from sordino_lab.sweep import Grid, Sweep
from sordino_lab.thesis import MNIST, MNIST_MIDDLE, mnist
from sordino_lab.training_curves import mean
from sordino_lab.workbench import Workbench


def values(bench: Workbench, way: str) -> Sequence[float]:
    """Bounds."""
    return bench.pick(
        (1.0,), (0.5, 1.0, 2.5, 7.5, 20.0), (0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0), (0.5, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0)
    )


def plan(bench: Workbench, way: str, value: float) -> CurvePlan:
    """One run."""
    return replace(mnist(bench, "DP-SGD", 0.1, value), label=f"DP-SGD, C = {value:g}")


SWEEP = Sweep("clip bound C", values, plan, ("DP-SGD",), "MNIST, lr 0.1")


def judge(bench: Workbench, grid: Grid) -> list[Finding]:
    """Judges whether the source's choice is the best of the grid in accuracy and in loss."""
    row = grid["DP-SGD"]
    if 7.5 not in row:
        return []
    accuracy = {value: one.last() for value, one in row.items()}
    loss = {value: one.last("test_loss") for value, one in row.items()}
    most, least = max(accuracy, key=lambda c: accuracy[c][0]), min(loss, key=lambda c: loss[c][0])
    # Best means: neither the best accuracy nor the least loss is better by more than the seeds spread.
    behind = accuracy[most][0] - accuracy[7.5][0], loss[7.5][0] - loss[least][0]
    spread = math.hypot(accuracy[most][1], accuracy[7.5][1]), math.hypot(loss[least][1], loss[7.5][1])
    return [
        Finding(
            "at learning rate 0.1, loss and accuracy are the best possible at C = 7.5",
            "001:449",
            bench.judged(all(gap <= noise for gap, noise in zip(behind, spread, strict=True))),
            f"C = 7.5: {accuracy[7.5][0]:.2f} ± {accuracy[7.5][1]:.2f} %, loss {loss[7.5][0]:.3f}; best accuracy at "
            f"C = {most:g}: {accuracy[most][0]:.2f} ± {accuracy[most][1]:.2f} %; least loss at "
            f"C = {least:g}: {loss[least][0]:.3f}",
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
