"""Convergence of a CNN on MNIST under several noise scales.

source     004, Effect of noise on convergence (a), lines 266–272
setting    CNN on MNIST, 500 iterations, several σ, local clipping
reduced    4,000 records, 120 iterations, one seed
"""

from __future__ import annotations

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.training_curves import learning, mean
from sordino_lab.workbench import Workbench

NOISES = (0.0, 0.5, 1.0, 2.0, 4.0)


def plans(bench: Workbench) -> list[CurvePlan]:
    """One for each noise; σ = 0 has no guarantee."""
    records, iterations = bench.pick(60_000, 4_000, 60_000, 60_000), bench.pick(3, 120, 500, 500)
    some = NOISES if bench.tells else NOISES[:2]
    return [
        CurvePlan(
            label=f"σ = {noise:g}",
            method="dpsgd" if noise else "sgd",
            recipe="wd-mnist",
            batch=64,
            records=records if records < 60_000 else None,
            epochs=iterations * 64 / records,
            seeds=bench.pick(1, 1, 2, 3),
            evaluations=bench.pick(1, 6, 10, 10),
            variant=k,
            given={"noise_multiplier": noise, "bound": 1.0, "weight_decay": 0.0},
        )
        for k, noise in enumerate(some)
    ]


def run(bench: Workbench) -> Outcome:
    """Accuracy and loss."""
    trained = bench.trained(plans(bench))
    return Outcome(
        learning(trained, "CNN on MNIST"),
        notes=[
            "The slide makes no claim and prints no numbers, and neither lot nor bound: lots of 64 and C = 1 here: "
            + ", ".join(f"{one.plan.label} {mean(one):.1f} %" for one in trained)
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="noise-convergence",
    source="004",
    figure="Effect of noise on convergence (a)",
    lines="266–272",
    title="Noise and convergence",
    shows="more noise converges more slowly and to a worse loss",
    setting="CNN on MNIST, 500 iterations, several σ, local clipping",
    reduced="4,000 records, 120 iterations, one seed",
    middle="nothing but a seed",
    nouns=("Flat", "Gaussian"),
    terms="",
    seconds=35,
    run=run,
    plans=plans,
)
