"""MNIST accuracy when one parameter varies: projection dimensions, hidden units, lot size, learning rate, clip, noise.

source     002, Figure 5, lines 169–174
setting    six parameters varied one at a time around the reference
reduced    see lab/sordino_lab/abadi.py
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sordino.app.report.panels import Panel
from sordino_lab.abadi import plan
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.training_curves import mean, no_guarantee, swept
from sordino_lab.workbench import Workbench

SWEEPS: Mapping[str, tuple[str, tuple[float, ...], tuple[float, ...]]] = {
    "components": ("projection dimensions", (20, 60, 200), (10, 20, 40, 60, 100, 200)),
    "widths": ("hidden units", (64, 256, 1000), (200, 500, 1000, 2000)),
    "batch": ("lot size", (200, 600, 1500), (200, 400, 600, 1000, 2000)),
    "learning_rate": ("learning rate", (0.02, 0.1, 0.5), (0.01, 0.05, 0.1, 0.2, 0.5)),
    "bound": ("clip bound", (1, 4, 10), (1, 2, 4, 7, 10)),
    "noise_multiplier": ("noise multiplier σ", (2, 4, 8), (2, 4, 6, 8, 12)),
}
"""Field, name, values at --quick and beyond."""


def one(bench: Workbench, name: str, value: float) -> CurvePlan:
    """The reference with one thing changed; seed 0 only at --quick."""
    given: dict[str, Any] = {"final_rate": 0.0521 * (value if name == "learning_rate" else 0.1) / 0.1}
    batch, noise = (value if name == "batch" else 600.0), (value if name == "noise_multiplier" else 4.0)
    if name == "widths":
        given["widths"] = (int(value),)
    elif name == "components":
        given["components"] = int(value)
    elif name not in ("batch", "noise_multiplier"):
        given[name] = float(value)
    return plan(
        bench, noise, 7.0, label=f"{SWEEPS[name][0]} {value:g}", epochs=bench.pick(1, 5, 20, 60), batch=batch, **given
    )


def grid(bench: Workbench) -> dict[str, dict[float, CurvePlan]]:
    """Everything; at the size of the tests one value of two sweeps."""
    some = bench.pick(2, 6, 6, 6)
    return {
        name: {
            value: one(bench, name, value)
            for value in (few[:1] if not bench.tells else few if bench.size.value == "quick" else many)
        }
        for name, (_, few, many) in list(SWEEPS.items())[:some]
    }


def plans(bench: Workbench) -> list[CurvePlan]:
    """All of them."""
    return [each for row in grid(bench).values() for each in row.values()]


def run(bench: Workbench) -> Outcome:
    """Six panels."""
    panels, spread = [], {}
    every = []
    for name, row in grid(bench).items():
        trained = {value: bench.trained([each])[0] for value, each in row.items()}
        every += list(trained.values())
        found = [mean(each) for each in trained.values()]
        spread[name] = max(found) - min(found)
        panels.append(Panel(SWEEPS[name][0], SWEEPS[name][0], "test accuracy, %", [swept(trained, "")], xlog=True))
    widest = max(spread, key=lambda name: spread[name])
    return Outcome(
        panels,
        findings=[
            Finding(
                "accuracy is more sensitive to training parameters such as batch size and noise than to the structure "
                "of the network",
                "002:116",
                bench.judged(
                    spread.get("widths", 0.0) < min(spread.get("batch", 0.0), spread.get("noise_multiplier", 0.0))
                ),
                ", ".join(f"{SWEEPS[name][0]} {value:.1f}" for name, value in spread.items())
                + f" points; most: {SWEEPS[widest][0]}",
            )
        ],
        notes=[
            "ε is another for every lot and noise: the panels compare accuracy at the reference's epochs, as the "
            "paper does.",
            *no_guarantee(every),
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="abadi-mnist-sweeps",
    source="002",
    figure="Figure 5",
    lines="169–174",
    title="Six parameters, one at a time",
    shows="accuracy depends on lot, rate, clip and noise, and little on the size of the network",
    setting="six parameters varied one at a time around the reference",
    reduced="6,000 records, 5 epochs, 256 hidden units, 2 seeds",
    middle="20 epochs, one seed",
    nouns=("PCA", "Flat"),
    terms="",
    seconds=75,
    run=run,
    plans=plans,
)
