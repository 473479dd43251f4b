"""The cosine of DP-SGD's update and ProjectedDPSGD's, before noise: with one noise in both it says nothing.

source     001, F5.5, F5.6, lines 1000–1030
setting    cosine of the plain and the projected update before noise, C = 1 and 5, lr .01/.1/1
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sordino.app.report.panels import Panel, Series
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.diagnostic_series import steps_of
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, cifar
from sordino_lab.trained import TrainedCurve
from sordino_lab.training_curves import no_guarantee, not_run
from sordino_lab.workbench import Workbench

SETTINGS = ((1.0, (0.01, 0.1, 1.0)), (5.0, (0.01, 0.1, 1.0)))


def plans(bench: Workbench) -> list[CurvePlan]:
    """Both bounds at each rate."""
    some = SETTINGS if bench.tells else SETTINGS[:1]
    return [
        cifar(bench, "projected", rate, bound, diagnose="substeps")
        for bound, rates in some
        for rate in (rates if bench.tells else rates[:1])
    ]


@dataclass(frozen=True)
class Cosines:
    """Panels of cosines by bound, with their deviation and least value by (bound, learning rate)."""

    panels: list[Panel]
    spread: dict[tuple[float, float], float]
    low: dict[tuple[float, float], float]
    trained: list[TrainedCurve]


def measure(bench: Workbench, wanted: Sequence[CurvePlan]) -> Cosines:
    """Trains what is not there, and returns the cosines of plain and projected updates, a panel for each bound."""
    panels: list[Panel] = []
    spread: dict[tuple[float, float], float] = {}
    low: dict[tuple[float, float], float] = {}
    trained = bench.available(wanted)
    for bound in sorted({one.plan.given["bound"] for one in trained}):
        lines = []
        for one in (one for one in trained if one.plan.given["bound"] == bound):
            values = steps_of(one, "substeps")
            at: Any = np.linspace(0, one.runs[0].rows[-1]["epoch"], values.shape[1]) if values.size else []
            lines.append(
                Series(
                    one.plan.label,
                    at,
                    values.mean(axis=0) if values.size else [],
                    low=values.min(axis=0) if values.size else (),
                    high=values.max(axis=0) if values.size else (),
                    method="projected",
                    variant=one.plan.variant,
                    hollow=one.hollow,
                )
            )
            rate = one.plan.given["learning_rate"]
            spread[bound, rate] = float(np.std(values)) if values.size else 0.0
            low[bound, rate] = float(np.min(values)) if values.size else 1.0
        panels.append(Panel(f"C = {bound:g}", "epochs", "cosine before noise", lines))
    return Cosines(panels, spread, low, trained)


def run(bench: Workbench) -> Outcome:
    """Draws a panel for each bound and judges how the spread depends on learning rate and bound."""
    found = measure(bench, plans(bench))
    panels, spread, low, trained = found.panels, found.spread, found.low, found.trained
    calm, wild = spread.get((1.0, 0.1), 0.0), spread.get((5.0, 1.0), 0.0)
    return Outcome(
        panels,
        findings=[
            Finding(
                "the cosine depends very much on the learning rate",
                "001:1000",
                bench.judged(spread.get((1.0, 1.0), 0.0) > 2 * calm),
                f"deviation {spread.get((1.0, 1.0), 0.0):.4f} at lr 1, {calm:.4f} at lr 0.1, C = 1",
            ),
            Finding(
                "the bound has a strong effect as well",
                "001:1004",
                bench.judged(wild > 2 * spread.get((1.0, 1.0), 0.0)),
                f"least cosine {low.get((5.0, 1.0), 1.0):.2f} at lr 1, C = 5; {low.get((1.0, 0.1), 1.0):.4f} at lr "
                "0.1, C = 1",
            ),
        ],
        notes=[
            "Compared before noise, as the source does: the first part of the update against the whole. Disclosed in "
            "the claim, which has "
            "no guarantee anyway.",
            *not_run(bench, plans(bench)),
            *no_guarantee(trained),
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="projected-cosine",
    source="001",
    figure="F5.5, F5.6",
    lines="1000–1030",
    title="Cosine of the plain and the projected update",
    shows="the projected update is nearly the plain one; it differs more for large learning rates and bounds",
    setting="cosine of the plain and the projected update before noise, C = 1 and 5, lr .01/.1/1",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Projected", "substep_cosine"),
    terms="Cosinus-Ähnlichkeit, Updatevektor",
    seconds=40,
    run=run,
    plans=plans,
)
