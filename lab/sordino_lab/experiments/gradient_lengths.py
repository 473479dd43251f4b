"""Box plots of gradient lengths per lot over the epochs: topk, none, quantilesort.

source     001, F4.16–F4.18, lines 745–765
setting    box plots of gradient lengths per batch: SGD with topk, without sorting, with quantilesort, lr .01
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.app.report.panels import Boxes, Panel
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.diagnostic_series import steps_of
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, cifar
from sordino_lab.workbench import Workbench

WAYS: dict[str, dict[str, Any]] = {
    "topk": {"sampler": "sorted-top-k"},
    "no sorting": {},
    "quantilesort": {"sampler": "sorted-quantile"},
}
METHODS = {"topk": "sorted", "no sorting": "sgd", "quantilesort": "quantile-sorted"}


def plans(bench: Workbench) -> list[CurvePlan]:
    """Plain SGD with each way to fill a lot."""
    return [cifar(bench, "DP-SGD", 0.01, 1.0, diagnose="lengths", non_private=True, **words) for words in WAYS.values()]


def run(bench: Workbench) -> Outcome:
    """Three panels of boxes: the first and the last epoch."""
    panels, width, fall, grown = [], {}, {}, {}
    for name, one in zip(WAYS, bench.trained(plans(bench)), strict=True):
        boxes = steps_of(one, "lengths")[0]  # (steps, 5)
        lots = max(1, round(len(boxes) / max(1.0, one.runs[0].rows[-1]["epoch"])))
        last = boxes[-lots:] if len(boxes) >= lots else boxes
        every = boxes[:: max(1, len(boxes) // 60)]
        at = np.arange(len(boxes))[:: max(1, len(boxes) // 60)] / lots
        panels.append(
            Panel(
                f"SGD, {name}",
                "epochs",
                "gradient length",
                boxes=[
                    Boxes(
                        "minimum, quartiles, maximum of a lot",
                        at,
                        [tuple(row) for row in every],
                        METHODS[name],
                        hollow="no noise",
                    )
                ],
            )
        )
        width[name] = float(np.nanmean((last[:, 3] - last[:, 1]) / np.maximum(last[:, 2], 1e-12)))
        fall[name] = float(last[0, 2] / max(last[-1, 2], 1e-12))
        grown[name] = float(np.nanmean(boxes[-lots:, 4]) / max(np.nanmean(boxes[:lots, 4]), 1e-12))
    return Outcome(
        panels,
        findings=[
            Finding(
                "sorting gives a smooth course, and boxes that are very small",
                "001:753",
                bench.judged(width["topk"] < width["no sorting"]),
                f"quartile range over median in the last epoch: {width['topk']:.2f} sorted, {width['no sorting']:.2f} "
                f"not, {width['quantilesort']:.2f} by quantiles; "
                f"the median falls by a factor of {fall['topk']:.1f} through the sorted epoch",
            ),
            Finding(
                "lengths grow with every epoch",
                "001:753",
                bench.judged(grown["topk"] > 1),
                f"the longest grow {grown['topk']:.2f}-fold over the run when sorted",
            ),
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="gradient-lengths",
    source="001",
    figure="F4.16–F4.18",
    lines="745–765",
    title="Gradient lengths of the lots",
    shows="sorted lots have lengths that fall smoothly through the epoch and are narrow within a lot",
    setting="box plots of gradient lengths per batch: SGD with topk, without sorting, with quantilesort, lr .01",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("length_quantiles", "Sorted"),
    terms="Gradientenlängen, Boxplots, Quantilesort",
    seconds=40,
    run=run,
    plans=plans,
)
