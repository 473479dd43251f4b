"""The cosine of consecutive updates within the epochs: bathtub and V shapes when sorted.

source     001, F4.7, F4.8, FA.4, lines 574–592
setting    cosine of consecutive updates: C=9.5 at lr .1, C=10 at lr .01; sorted against DP-SGD
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.app.report.panels import Panel, Series
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.diagnostic_series import steps_of
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, cifar
from sordino_lab.trained import TrainedCurve
from sordino_lab.training_curves import no_guarantee
from sordino_lab.workbench import Workbench

SETTINGS = ((0.1, 9.5), (0.01, 10.0))
CLEARLY = 0.02
"""Of a cosine."""
QUIET: dict[str, Any] = {"noise_multiplier": 0.0}
Shapes = dict[tuple[str, int], NDArray[np.float64]]
"""Mean cosine at each place in the epoch, by label and by early (0) or late (1)."""


def plans(bench: Workbench) -> list[CurvePlan]:
    """Both methods at both settings, first without noise, then with it."""
    some = SETTINGS if bench.tells else SETTINGS[:1]
    found = [
        cifar(bench, way, rate, bound, diagnose="cosines", **given)
        for given in (QUIET, dict[str, Any]())
        for rate, bound in some
        for way in ("DP-SGD", "sorted")
    ]
    # Figure A.4: the median of the lot as a bound, capped at 9.5.
    rate, bound = SETTINGS[0]
    return [*found, cifar(bench, "sorted, median", rate, bound, diagnose="cosines", **QUIET)]


def run(bench: Workbench) -> Outcome:
    """Cosine against the place in the epoch, early and late."""
    trained = bench.trained(plans(bench))
    quiet = [one for one in trained if one.plan.given.get("noise_multiplier") == 0.0]
    noisy = [one for one in trained if one not in quiet]
    shape: Shapes = {}
    panels = [_panel(f"{one.plan.label}, no noise", _lines(one, shape)) for one in quiet]
    loud: Shapes = {}
    drawn = [replace(_lines(one, loud)[1], label=one.plan.label, variant=k) for k, one in enumerate(noisy)]
    panels.append(_panel("the same with σ = 1.1, last third", drawn))
    late = shape.get(("sorted, lr 0.1", 1), np.zeros(3))
    third = max(1, len(late) // 3)
    begins, ends = float(np.nanmean(late[:third])), float(np.nanmean(late[-third:]))
    middle = float(np.nanmean(late[third : 2 * third]))
    early = {
        rate: float(np.nanmean(shape[f"DP-SGD, lr {rate}", 0]))
        for rate in ("0.1", "0.01")
        if (f"DP-SGD, lr {rate}", 0) in shape
    }
    most = max(float(np.nanmax(np.abs(one))) for one in loud.values())
    return Outcome(
        panels,
        findings=[
            Finding(
                "in later epochs a bathtub: updates are very similar at both ends of the epoch and contradict each "
                "other in its middle",
                "001:580",
                bench.judged(min(begins, ends) > CLEARLY and middle < -CLEARLY),
                f"before noise the mean cosine is {begins:.2f} at the beginning, {middle:.2f} in the middle and "
                f"{ends:.2f} at the end of a sorted epoch",
            ),
            Finding(
                "DPSGD's cosines are above 0 early at lr 0.01 and below at 0.1",
                "001:590",
                bench.judged(early.get("0.01", 0.0) > 0 > early.get("0.1", 0.0)),
                f"{early.get('0.01', 0.0):.3f} and {early.get('0.1', 0.0):.3f} before noise",
            ),
        ],
        notes=[
            "The source draws cosines all the way from −1 to 1. Those of released updates cannot be: noise in so many "
            f"dimensions makes any two of them all but orthogonal (at most {most:.3f} in the mean here). So its curves are "
            "of updates before noise; ours are of runs that clip and add none.",
            *no_guarantee(trained),
        ],
        commands=bench.commands(plans(bench)),
    )


def _lines(one: TrainedCurve, shape: Shapes) -> list[Series]:
    values = steps_of(one, "cosines")  # (seeds, steps)
    lots = max(1, round(values.shape[1] / max(1.0, one.runs[0].rows[-1]["epoch"])))
    epochs = values.shape[1] // lots
    by = values[:, : epochs * lots].reshape(len(values), epochs, lots) if epochs else values[:, None, :]
    third = max(1, by.shape[1] // 3)
    lines = []
    for k, (name, part) in enumerate((("first third of the epochs", by[:, :third]), ("last third", by[:, -third:]))):
        seen = np.where(np.isnan(part).all(axis=(0, 1)), 0.0, part)  # the first step has no step before it
        middle, spread = np.nanmean(seen, axis=(0, 1)), np.nanstd(seen, axis=(0, 1))
        lines.append(
            Series(
                name,
                range(1, by.shape[2] + 1),
                middle,
                low=middle - spread,
                high=middle + spread,
                method=one.plan.method,
                variant=k,
                hollow=one.hollow,
            )
        )
        shape[one.plan.label, k] = middle
    return lines


def _panel(title: str, lines: list[Series]) -> Panel:
    return Panel(title, "lot within the epoch", "cosine with the update before", lines, ylim=(-1, 1))


EXPERIMENT = Experiment(
    id="update-cosine",
    source="001",
    figure="F4.7, F4.8, FA.4",
    lines="574–592",
    title="Cosines of consecutive updates",
    shows="before noise, sorted lots make consecutive updates agree at the ends of an epoch and contradict in its middle",
    setting="cosine of consecutive updates before noise: C=9.5 at lr .1, C=10 at lr .01; sorted against DP-SGD",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("UpdateCosines", "Sorted"),
    terms="Cosinus-Ähnlichkeit, Badewannenkurve",
    seconds=40,
    run=run,
    plans=plans,
)
