"""MNIST with and without the private PCA, and with and without the decay of the learning rate, at σ = 4.

source     002, § Implementation, lines 132–134
setting    with and without the private PCA, with and without the decay of the learning rate
reduced    see lab/sordino_lab/abadi.py
"""

from __future__ import annotations

from sordino_lab.abadi import MIDDLE, REDUCED, plan
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.training_curves import higher, learning
from sordino_lab.workbench import Workbench


def plans(bench: Workbench) -> list[CurvePlan]:
    """The whole, without PCA, without decay."""
    return [
        plan(bench, 4.0, 7.0, label="PCA and decay", method="pca"),
        plan(bench, 4.0, None, label="without PCA", method="dpsgd", variant=1),
        plan(bench, 4.0, 7.0, label="without decay of the rate", method="moments", variant=2, schedule="constant"),
    ]


def run(bench: Workbench) -> Outcome:
    """Three curves."""
    trained = bench.trained(plans(bench))
    return Outcome(
        learning(trained, "MNIST, σ = 4"),
        findings=[
            higher(
                bench,
                trained[0],
                trained[1],
                "projecting on principal directions improves the model",
                "002:132",
                why=f"ε = {trained[0].epsilon or 0:.2f} with it and {trained[1].epsilon or 0:.2f} without",
            ),
            higher(
                bench,
                trained[0],
                trained[2],
                "a small benefit from starting with a larger rate and decaying it",
                "002:134",
            ),
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="abadi-mnist-parts",
    source="002",
    figure="§ Implementation",
    lines="132–134",
    title="With and without PCA and decay",
    shows="the private PCA pays for itself; the decay of the rate hardly matters",
    setting="with and without the private PCA, with and without the decay of the learning rate",
    reduced=REDUCED,
    middle=MIDDLE,
    nouns=("PCA",),
    terms="",
    seconds=30,
    run=run,
    plans=plans,
)
