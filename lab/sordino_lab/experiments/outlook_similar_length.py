"""Lots of gradients of like length instead of the longest.

source     001, outlook d), lines 834
setting    lots of gradients of like length, not the longest
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, cifar
from sordino_lab.training_curves import against, higher, learning, no_guarantee
from sordino_lab.workbench import Workbench


def plans(bench: Workbench) -> list[CurvePlan]:
    """Every curve."""
    return [cifar(bench, way, 0.1, 5.0) for way in ("DP-SGD", "sorted", "similar length")]


def run(bench: Workbench) -> Outcome:
    """Train, draw, judge."""
    trained = bench.trained(plans(bench))
    return Outcome(
        learning(trained, "CIFAR-10"),
        against(trained, {}, ""),
        [
            higher(
                bench,
                trained[2],
                trained[1],
                "similar gradients instead of the longest may smooth the beginning of an epoch",
                "001:834",
            )
        ],
        [*[], *no_guarantee(trained)],
        bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="outlook-similar-length",
    source="001",
    figure="outlook d)",
    lines="834",
    title="Outlook: lots of like length",
    shows="lots of like length avoid the outliers at the beginning of an epoch",
    setting="lots of gradients of like length, not the longest",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted",),
    terms="ähnliche Gradienten",
    seconds=40,
    run=run,
    plans=plans,
)
