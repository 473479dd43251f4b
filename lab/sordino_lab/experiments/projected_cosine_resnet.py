"""The cosine of DP-SGD's update and ProjectedDPSGD's on ResNet-18, before noise.

source     001, F5.9, F5.10, lines 1051–1065
setting    ResNet-18 with GroupNorm, C = 1 and 5, lr .01/.1/1, ρ=2, 30 epochs
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from typing import Any

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.experiments.projected_cosine import SETTINGS, measure
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, cifar
from sordino_lab.training_curves import no_guarantee, not_run
from sordino_lab.workbench import Workbench


def plans(bench: Workbench) -> list[CurvePlan]:
    """Returns both bounds at each rate; at the size of the tests one."""
    some = SETTINGS if bench.tells else SETTINGS[:1]
    network: dict[str, Any] = bench.pick({}, {}, {"model": "resnet18"}, {"model": "resnet18"})
    return [
        cifar(bench, "projected", rate, bound, diagnose="substeps", **network)
        for bound, rates in some
        for rate in (rates if bench.tells else rates[:1])
    ]


def run(bench: Workbench) -> Outcome:
    """Draws a panel for each bound and judges what the source says of the learning rate at each."""
    found = measure(bench, plans(bench))
    at = found.spread
    return Outcome(
        found.panels,
        findings=[
            Finding(
                "with a large bound small learning rates are very similar, 1.0 spreads more",
                "001:1056",
                bench.judged(at[5.0, 1.0] > 2 * max(at[5.0, 0.01], at[5.0, 0.1])) if (5.0, 1.0) in at else None,
                ", ".join(f"C = {bound:g}, lr {rate:g}: deviation {value:.4f}" for (bound, rate), value in at.items()),
            )
        ],
        notes=[
            "The source fine-tunes a ResNet-18 that was trained before; this one begins with random weights.",
            *not_run(bench, plans(bench)),
            *no_guarantee(found.trained),
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="projected-cosine-resnet",
    source="001",
    figure="F5.9, F5.10",
    lines="1051–1065",
    title="Cosine of the plain and the projected update, ResNet-18",
    shows="on a pretrained network the learning rate spreads the cosines less at a small bound",
    setting="ResNet-18 with GroupNorm, C = 1 and 5, lr .01/.1/1, ρ=2, 30 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    differs="random weights in place of pretrained ones",
    nouns=("Projected", "substep_cosine", "resnet18"),
    terms="Cosinus-Ähnlichkeit, vortrainiertes Netz",
    seconds=40,
    run=run,
    plans=plans,
)
