"""Sorted plain SGD up to its crash: lengths, dominant classes and cosines; class shares of random lots.

source     001, F4.9–F4.12, lines 594–642
setting    SGD with topk, lr .01/.1/1: lengths, dominant class and cosine up to the NaN; class shares at random
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from typing import Any

import numpy as np

from sordino.app.report.panels import Panel, Series
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.diagnostic_series import steps_of
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, cifar, label
from sordino_lab.trained import TrainedCurve
from sordino_lab.workbench import Workbench

RATES = (0.01, 0.1, 1.0)
_SORTED = tuple(label("sorted", rate) for rate in RATES)
_DIVERSE = tuple(label("class-diverse", rate) for rate in RATES[1:])
_HALF = 0.5
WAYS = {
    "topk": ("sorted", {"sampler": "sorted-top-k"}),
    "class-diverse": ("class-diverse", {"sampler": "sorted-class-diverse"}),
}


def plans(bench: Workbench) -> list[CurvePlan]:
    """Sorted at three rates, class-diverse at two, random at one."""
    looks: dict[str, Any] = {"diagnose": "cosines,lengths,classes", "non_private": True}
    some = RATES if bench.tells else RATES[:1]
    found = [cifar(bench, "sorted", rate, 1.0, **looks) for rate in some]
    found += [cifar(bench, "class-diverse", rate, 1.0, **looks) for rate in some[1:]]
    return [*found, cifar(bench, "DP-SGD", 0.1, 1.0, **looks)]


def run(bench: Workbench) -> Outcome:
    """Accuracy, lengths, share of the dominant class, cosine."""
    trained = bench.trained(plans(bench))
    curves, lengths, shares, ended = [], [], [], {}
    for one in trained:
        series = one.series("test_loss")
        name = "random" if one.plan.method == "dpsgd" else one.plan.label
        curves.append(
            Series(
                name + (": not finite" if one.diverged else ""),
                series.x,
                series.y,
                method="sgd" if name == "random" else one.plan.method,
                variant=one.plan.variant,
                hollow="no noise",
            )
        )
        boxes, classes = steps_of(one, "lengths")[0], steps_of(one, "classes")[0]
        ended[name] = one.diverged
        style: dict[str, Any] = {"method": curves[-1].method, "variant": one.plan.variant, "hollow": "no noise"}
        lengths.append(Series(name, range(1, len(boxes) + 1), boxes[:, 2] if len(boxes) else [], **style))
        share = classes[:, 1] if len(classes) else np.zeros(0)
        shares.append(
            (
                name,
                Series(name, range(1, len(share) + 1), 100 * share, **style),
                float(np.nanmean(share)) if len(share) else 0.0,
            )
        )
    by_name = {name: mean for name, _, mean in shares}
    top = by_name.get("sorted, lr 0.1", by_name.get("sorted, lr 0.01", 0.0))
    crashed = [name for name, why in ended.items() if why]
    diverse = [name for name in crashed if name.startswith("class-diverse")]
    only_the_smallest_rate_survives = set(crashed) & set(_SORTED) == {"sorted, lr 0.1", "sorted, lr 1"}
    return Outcome(
        [
            Panel("SGD with sorted lots: loss", "epochs", "test loss", curves, ylog=True),
            Panel("median gradient length of each lot", "lots", "gradient length", lengths, ylog=True),
            Panel("share of the dominant class", "lots", "share of the lot, %", [line for _, line, _ in shares]),
            *_draw_last_epochs(next((one for one in trained if one.plan.label == "sorted, lr 0.1"), trained[0])),
        ],
        findings=[
            Finding(
                "sorted SGD crashes at learning rate 0.1; only at 0.01 did training succeed",
                "001:600",
                bench.judged(only_the_smallest_rate_survives) if set(_SORTED) <= set(ended) else None,
                f"not finite here: {', '.join(crashed) or 'none'}",
            ),
            Finding(
                "mostly batches of one class are chosen, interrupted by batches of several",
                "001:618",
                bench.judged(top > _HALF),
                f"the dominant class has {100 * top:.0f} % of a sorted lot and {100 * by_name.get('random', 0.0):.0f} "
                "% of a random one",
            ),
            Finding(
                "with artificial diversity SGD still crashes at the rates 1.0 and 0.1",
                "001:635",
                bench.judged(len(diverse) == len(_DIVERSE)) if set(_DIVERSE) <= set(ended) else None,
                f"not finite here: {', '.join(diverse) or 'none'}",
            ),
        ],
        commands=bench.commands(plans(bench)),
        numbers={"ended": ended, "dominant": by_name},
    )


def _draw_last_epochs(one: TrainedCurve) -> list[Panel]:
    """Returns what figures 4.10 and 4.11 draw of the last two epochs of a run, lot by lot.

    These are the gradient length, the dominant class, its share, and the cosine with the update before.
    The source draws the mean length of a lot; the diagnostics keep the median.
    """
    boxes, classes, cosines = (steps_of(one, name)[0] for name in ("lengths", "classes", "cosines"))
    in_an_epoch = (
        max(1, round(len(boxes) / max(1.0, one.runs[0].rows[-1]["epoch"]))) if one.runs[0].rows else len(boxes)
    )
    begin = max(0, len(boxes) - 2 * in_an_epoch)
    lots = range(begin + 1, len(boxes) + 1)
    title, hollow = f"{one.plan.label}, last two epochs", "no noise"

    def draw(what: str, values: Any, ylabel: str, *, points: bool = False, **axes: Any) -> Panel:
        line = Series(one.plan.label, lots, values, method=one.plan.method, points=points, hollow=hollow)
        return Panel(f"{title}: {what}", "lots", ylabel, [line], **axes)

    if not len(boxes) or not len(classes) or not len(cosines):
        return []
    return [
        draw("lengths", boxes[begin:, 2], "median gradient length", ylog=True),
        draw("dominant share", 100 * classes[begin:, 1], "share of the lot, %", ylim=(0, 100)),
        draw("cosine", cosines[begin:], "cosine with the update before", points=True, ylim=(-1, 1)),
        draw("dominant class", classes[begin:, 0], "class", points=True, ylim=(-0.5, 9.5)),
    ]


EXPERIMENT = Experiment(
    id="sorted-sgd-crash",
    source="001",
    figure="F4.9–F4.12",
    lines="594–642",
    title="How sorted SGD crashes",
    shows="lots of the longest gradients are lots of one class; each pulls the network away from the others until the "
    "loss is not finite",
    setting="SGD with topk, lr .01/.1/1: lengths, dominant class and cosine up to the NaN; class shares at random; "
    "class-diverse",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted", "dominant_class"),
    terms="Programmabstürze, dominante Klasse, NaN-Fehler",
    seconds=60,
    run=run,
    plans=plans,
)
