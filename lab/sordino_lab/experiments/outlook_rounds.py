"""ProjectedDPSGD with other ρ and with more rounds.

source     001, outlooks a), b) of ch. 5, lines 1093–1095
setting    ρ, and r rounds on the way
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
    base = cifar(bench, "projected", 1.0, 5.0)
    some = (({"rho": 2.0}, "ρ = 2"), ({"rho": 4.0}, "ρ = 4"), ({"rho": 2.0, "rounds": 3.0}, "3 rounds"))
    return [
        cifar(bench, "DP-SGD", 1.0, 5.0),
        *(replace(base, label=f"projected, {name}", parameters=own, variant=k) for k, (own, name) in enumerate(some)),
    ]


def run(bench: Workbench) -> Outcome:
    """Train, draw, judge."""
    trained = bench.trained(plans(bench))
    return Outcome(
        learning(trained, "CIFAR-10"),
        against(trained, {}, ""),
        [
            higher(
                bench,
                trained[-1],
                trained[1],
                "r steps on the way could show the surroundings of an update more clearly",
                "001:1095",
            )
        ],
        [*[], *no_guarantee(trained)],
        bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="outlook-rounds",
    source="001",
    figure="outlooks a), b) of ch. 5",
    lines="1093–1095",
    title="Outlook: ρ and rounds",
    shows="more rounds on the way change nothing but the price",
    setting="ρ, and r rounds on the way",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Projected", "NoisyLookahead"),
    terms="Rounds r, Parameter ρ",
    seconds=40,
    run=run,
    plans=plans,
)
