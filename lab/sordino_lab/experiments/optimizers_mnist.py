"""Five optimizers on MNIST at equal ε.

source     003, Adam; "ok to use AdamW by post-processing", lines 641–675, 771
setting    SGD, momentum, AdaGrad, Adam, AdamW on the same private gradients, equal ε
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from dataclasses import replace

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.thesis import MNIST, MNIST_MIDDLE, mnist
from sordino_lab.training_curves import higher, learning
from sordino_lab.workbench import Workbench

WAYS = {
    "SGD": ("sgd", {"optimizer": "sgd", "learning_rate": 0.5}),
    "momentum": ("momentum", {"optimizer": "sgd", "learning_rate": 0.1, "momentum": 0.9}),
    "AdaGrad": ("adagrad", {"optimizer": "adagrad", "learning_rate": 0.02}),
    "Adam": ("adam", {"optimizer": "adam", "learning_rate": 0.002}),
    "AdamW": ("adamw", {"optimizer": "adamw", "learning_rate": 0.002, "weight_decay": 0.01}),
}


def plans(bench: Workbench) -> list[CurvePlan]:
    """Each with a rate of its own, not tuned."""
    base = mnist(bench, "DP-SGD", 0.1, 1.0, schedule="constant")
    some = WAYS if bench.tells else {name: WAYS[name] for name in ("SGD", "AdaGrad")}
    return [
        replace(base, label=name, method=method, variant=k, given={**base.given, **own})
        for k, (name, (method, own)) in enumerate(some.items())
    ]


def run(bench: Workbench) -> Outcome:
    """Five curves."""
    trained = bench.trained(plans(bench))
    spent = {round(one.epsilon or 0.0, 6) for one in trained}
    return Outcome(
        learning(trained, "MNIST, C = 1, σ = 1.1"),
        findings=[
            Finding(
                "it is ok to use AdamW, by post-processing",
                "003:771",
                len(spent) == 1,
                f"one ε = {max(spent):.2f} for all of them",
            ),
            higher(
                bench,
                trained[-1],
                trained[0],
                "AdamW is likely the best default optimizer",
                "003:674",
                why="rates not tuned",
            ),
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="optimizers-mnist",
    source="003",
    figure='Adam; "ok to use AdamW by post-processing"',
    lines="641–675, 771",
    title="Optimizers on MNIST at equal ε",
    shows="any optimizer may follow the released gradients at the same ε",
    setting="SGD, momentum, AdaGrad, Adam, AdamW on the same private gradients, equal ε",
    reduced=MNIST,
    middle=MNIST_MIDDLE,
    nouns=("AdamCorrected", "Flat"),
    terms="",
    seconds=40,
    run=run,
    plans=plans,
)
