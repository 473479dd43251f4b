"""The CIFAR-10 baseline of the slides: accuracy per epoch of decay outside the clip and of L2 inside it.

source     000, "CIFAR-10: Baseline", lines 412–418
setting    Conv_CIFAR_Net, R = 10, λ = 1e-4, σ = 1.5, lots of 2000, lr 0.1, momentum 0.9, 90 epochs
reduced    see lab/sordino_lab/slides.py
"""

from __future__ import annotations

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.slides import CIFAR, CIFAR_MIDDLE, INSIDE, OUTSIDE, cifar
from sordino_lab.training_curves import against, learning, mean
from sordino_lab.workbench import Workbench


def plans(bench: Workbench) -> list[CurvePlan]:
    """Both methods."""
    return [cifar(bench, way, variant=k, evaluations=5) for k, way in enumerate((OUTSIDE, INSIDE))]


def run(bench: Workbench) -> Outcome:
    """Accuracy and loss per epoch."""
    both = bench.trained(plans(bench))
    outside, inside = (mean(one) for one in both)
    epsilon = both[0].epsilon
    return Outcome(
        learning(both, "CIFAR-10, R = 10, λ = 1e-4"),
        against(both, {OUTSIDE: (None, 65.75), INSIDE: (None, 67.37)}, "000:413"),
        [
            Finding(
                "67.37 % with our method against 65.75 %",
                "000:413",
                bench.judged(inside > outside + 1),
                f"{outside:.2f} % outside, {inside:.2f} % inside; ε = {epsilon or 0:.2f} for both",
            )
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="wd-cifar-baseline",
    source="000",
    figure="CIFAR-10: Baseline",
    lines="412–418",
    title="CIFAR-10 baseline",
    shows="at a small λ it does not matter where the decay is",
    setting="R=10, λ=1e-4, σ=1.5",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("L2", "Flat"),
    seconds=20,
    run=run,
    plans=plans,
)
