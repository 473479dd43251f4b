"""Accuracy by class with and without DP.

source     004, Drawbacks; reference Bagdasaryan & Shmatikov 2019, lines 316–321, 381
setting    DP beside non-DP accuracy, class by class
reduced    6,000 records, 6 epochs, 2 seeds
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.app.report.panels import Panel, Series
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.trained import TrainedCurve
from sordino_lab.training_curves import mean, no_guarantee
from sordino_lab.workbench import Workbench

CLASSES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def plans(bench: Workbench) -> list[CurvePlan]:
    """Without DP, and at two noises."""
    base: dict[str, Any] = {
        "recipe": "fashion-logistic",
        "batch": 256,
        "records": bench.pick(None, 6_000, None, None),
        "epochs": bench.pick(1, 6, 15, 20),
        "seeds": bench.pick(1, 2, 3, 3),
        "evaluations": 3,
    }
    return [
        CurvePlan(label="without DP", method="sgd", given={"non_private": True, "learning_rate": 0.1}, **base),
        CurvePlan(label="σ = 0.7", method="dpsgd", variant=1, given={"noise_multiplier": 0.7}, **base),
        CurvePlan(label="σ = 4", method="dpsgd", variant=2, given={"noise_multiplier": 4.0}, **base),
    ]


def by_class(one: TrainedCurve) -> np.ndarray:
    """Mean over seeds of the last accuracies, in percent."""
    rows = [
        [np.nan if v is None else v for v in run.rows[-1]["test_by_class"]]
        for run in one.runs
        if run.rows and run.rows[-1].get("test_by_class")
    ]
    return 100 * np.mean(np.asarray(rows, dtype=float), axis=0) if rows else np.zeros(10)


def run(bench: Workbench) -> Outcome:
    """A mark for every class."""
    trained = bench.trained(plans(bench))
    found = [by_class(one) for one in trained]
    count = len(found[0])
    names = CLASSES[:count] if count == 10 else tuple(str(k) for k in range(count))
    drop = found[0] - found[-1]
    lines = [
        Series(
            one.plan.label,
            range(count),
            values,
            method=one.plan.method,
            variant=one.plan.variant,
            points=True,
            hollow=one.hollow,
        )
        for one, values in zip(trained, found, strict=True)
    ]
    hard = found[0] < np.median(found[0])
    return Outcome(
        [
            Panel(
                "Fashion-MNIST, class by class",
                "class",
                "test accuracy, %",
                lines,
                xticks=tuple(names),
            ),
            Panel(
                "lost between no DP and σ = 4",
                "class",
                "points of accuracy",
                [Series("", range(count), drop, method="dpsgd", points=True)],
                xticks=tuple(names),
            ),
        ],
        findings=[
            Finding(
                "DP-SGD is less accurate than non-DP approaches",
                "004:319",
                bench.judged(mean(trained[0]) > mean(trained[-1])),
                f"{mean(trained[0]):.1f} % without DP, {mean(trained[1]):.1f} % at σ = 0.7, {mean(trained[-1]):.1f} % "
                "at σ = 4",
            ),
            Finding(
                "differential privacy has disparate impact",
                "004:381",
                bench.judged(float(drop[hard].mean()) > float(drop[~hard].mean())) if hard.any() else None,
                f"harder classes lose {float(drop[hard].mean()) if hard.any() else 0:.1f} points, easier ones "
                f"{float(drop[~hard].mean()):.1f}",
            ),
        ],
        notes=[
            "The network without DP has a rate of 0.1: at the private one's it was unstable.",
            *no_guarantee(trained),
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="disparate-impact",
    source="004",
    figure="Drawbacks; reference Bagdasaryan & Shmatikov 2019",
    lines="316–321, 381",
    title="Who pays for privacy, class by class",
    shows="classes that are hard lose more under DP",
    setting="DP beside non-DP accuracy, class by class",
    reduced="6,000 records, 6 epochs, 2 seeds",
    middle="15 epochs",
    nouns=("Flat",),
    terms="",
    seconds=20,
    run=run,
    plans=plans,
)
