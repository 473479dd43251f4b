"""What if the order is not exact? Lots of the longest among few random candidates.

source     001, outlook b), lines 832
setting    what a less exact order costs: candidates drawn at random before ranking
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from dataclasses import replace

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, cifar
from sordino_lab.training_curves import against, higher, learning, no_guarantee
from sordino_lab.workbench import Workbench


def plans(bench: Workbench) -> list[CurvePlan]:
    """Every curve."""
    base = cifar(bench, "sorted", 0.1, 5.0)
    pools = ((0.0, "exact"), (4.0, "of 4 lots"), (2.0, "of 2 lots"))
    some = [
        replace(base, label=f"sorted, {name}", parameters={"pool": pool}, variant=k)
        for k, (pool, name) in enumerate(pools)
    ]
    return [cifar(bench, "DP-SGD", 0.1, 5.0), *some]


def run(bench: Workbench) -> Outcome:
    """Train, draw, judge."""
    trained = bench.trained(plans(bench))
    return Outcome(
        learning(trained, "CIFAR-10"),
        against(trained, {}, ""),
        [higher(bench, trained[1], trained[-1], "a study of the correctness of the order could pay", "001:832")],
        [*[], *no_guarantee(trained)],
        bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="outlook-noisy-sort",
    source="001",
    figure="outlook b)",
    lines="832",
    title="Outlook: a less exact order",
    shows="ranking a few random candidates instead of all records does as well",
    setting="what a less exact order costs: candidates drawn at random before ranking",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Sorted",),
    terms="Korrektheit der Sortierung",
    seconds=40,
    run=run,
    plans=plans,
)
