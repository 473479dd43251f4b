"""The cosine of consecutive updates within the epochs: bathtub and V shapes when sorted.

source     001, F4.7, F4.8, FA.4, lines 574–592
setting    cosine of consecutive updates: C=9.5 at lr .1, C=10 at lr .01; sorted against DP-SGD
reduced    see sordino/lab/thesis.py
"""

from __future__ import annotations

import numpy as np

from sordino.lab.curves import no_guarantee
from sordino.lab.experiment import Experiment, Finding, Outcome
from sordino.lab.looks import steps_of
from sordino.lab.plan import Plan
from sordino.lab.thesis import CIFAR, CIFAR_MIDDLE, cifar
from sordino.lab.workbench import Workbench
from sordino.report.panels import Panel, Series

SETTINGS = ((0.1, 9.5), (0.01, 10.0))


def plans(bench: Workbench) -> list[Plan]:
    """Both methods at both settings."""
    some = SETTINGS if bench.tells else SETTINGS[:1]
    return [cifar(bench, way, rate, bound, diagnose="cosines") for rate, bound in some for way in ("DP-SGD", "sorted")]


def run(bench: Workbench) -> Outcome:
    """Cosine against the place in the epoch, early and late."""
    trained = bench.trained(plans(bench))
    panels, shape = [], {}
    for one in trained:
        values = steps_of(one, "cosines")  # (seeds, steps)
        lots = max(1, round(values.shape[1] / max(1.0, one.runs[0].rows[-1]["epoch"])))
        epochs = values.shape[1] // lots
        by = values[:, : epochs * lots].reshape(len(values), epochs, lots) if epochs else values[:, None, :]
        third = max(1, by.shape[1] // 3)
        lines = []
        for k, (name, part) in enumerate(
            (("first third of the epochs", by[:, :third]), ("last third", by[:, -third:]))
        ):
            seen = np.where(np.isnan(part).all(axis=(0, 1)), 0.0, part)  # the first step has no step before it
            middle, spread = np.nanmean(seen, axis=(0, 1)), np.nanstd(seen, axis=(0, 1))
            lines.append(
                Series(
                    f"{name}",
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
        panels.append(
            Panel(one.plan.label, "lot within the epoch", "cosine with the update before", lines, ylim=(-1, 1))
        )
    late = shape.get(("sorted, lr 0.1", 1), np.zeros(3))
    third = max(1, len(late) // 3)
    ends, middle = float(np.nanmean([late[:third], late[-third:]])), float(np.nanmean(late[third : 2 * third]))
    plain = float(np.nanmean(np.abs(shape.get(("DP-SGD, lr 0.1", 1), np.zeros(1)))))
    early = {
        rate: float(np.nanmean(shape[f"DP-SGD, lr {rate}", 0]))
        for rate in ("0.1", "0.01")
        if (f"DP-SGD, lr {rate}", 0) in shape
    }
    return Outcome(
        panels,
        findings=[
            Finding(
                "in later epochs a bathtub: alike at the ends of the epoch, contradicting in the middle",
                "001:580",
                bench.judged(ends > middle),
                f"cosine {ends:.2f} at the ends and {middle:.2f} in the middle; DP-SGD's is {plain:.2f} in size "
                "throughout",
            ),
            Finding(
                "DPSGD's cosines are above 0 early at lr 0.01 and below at 0.1",
                "001:590",
                bench.judged(early.get("0.01", 0.0) > 0 > early.get("0.1", 0.0)),
                f"{early.get('0.01', 0.0):.3f} and {early.get('0.1', 0.0):.3f}",
            ),
        ],
        notes=no_guarantee(trained),
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="update-cosine",
    source="001",
    figure="F4.7, F4.8, FA.4",
    lines="574–592",
    title="Cosines of consecutive updates",
    shows="sorted lots make consecutive updates agree at the ends of an epoch and contradict in its middle",
    setting="cosine of consecutive updates: C=9.5 at lr .1, C=10 at lr .01; sorted against DP-SGD",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("UpdateCosines", "Sorted"),
    terms="Cosinus-Ähnlichkeit, Badewannenkurve",
    seconds=40,
    run=run,
    plans=plans,
)
