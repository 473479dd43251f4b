"""ProjectedDPSGD against DP-SGD on CIFAR-10 at larger bounds.

source     001, F5.4, lines 989–996
setting    C=2.5 and C=5, ρ=2, lr .01/.1/1, σ=1.1, 30 epochs
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from dataclasses import replace

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, RATES, cifar
from sordino_lab.training_curves import higher, learning, no_guarantee, not_run
from sordino_lab.workbench import Workbench

BOUNDS = (2.5, 5.0)
WAYS = ("DP-SGD", "projected")


def name(way: str, rate: float, bound: float) -> str:
    """Returns the label of a curve."""
    return f"{way}, C = {bound:g}, lr {rate:g}"


def plans(bench: Workbench) -> list[CurvePlan]:
    """Returns both methods at both bounds and all rates; at the size of the tests one rate."""
    some = RATES if bench.tells else RATES[1:2]
    return [
        replace(cifar(bench, way, rate, bound), label=name(way, rate, bound))
        for bound in BOUNDS
        for rate in some
        for way in WAYS
    ]


def run(bench: Workbench) -> Outcome:
    """Trains what is not there, and draws two panels for each bound."""
    found = {one.plan.label: one for one in bench.available(plans(bench))}
    panels = []
    for bound in BOUNDS:
        some = [one for one in found.values() if one.plan.given["bound"] == bound]
        panels += learning(some, f"CIFAR-10, C = {bound:g}, ρ = 2") if some else []
    findings = [
        higher(
            bench,
            found[name("DP-SGD", rate, 5.0)],
            found[name("projected", rate, 5.0)],
            f"ProjectedDPSGD is weaker than DPSGD (learning rate {rate:g})",
            "001:996",
        )
        for rate in RATES
        if {name(way, rate, 5.0) for way in WAYS} <= set(found)
    ]
    return Outcome(
        panels,
        findings=findings,
        notes=[
            "The source prints no numbers for this figure.",
            *not_run(bench, plans(bench)),
            *no_guarantee(list(found.values())),
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="projected-cifar-bounds",
    source="001",
    figure="F5.4",
    lines="989–996",
    title="ProjectedDPSGD at larger bounds",
    shows="at a larger bound looking ahead is worse",
    setting="C=2.5 and C=5, ρ=2, lr .01/.1/1, σ=1.1, 30 epochs",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("Projected", "NoisySum"),
    terms="ProjectedDPSGD, Updateschritt",
    seconds=60,
    run=run,
    plans=plans,
)
