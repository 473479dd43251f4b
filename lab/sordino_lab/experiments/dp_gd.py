"""Full-batch gradient descent with Laplace and with Gaussian noise, against DP-SGD, at equal ε and equal work.

source     003, Private full-batch gradient descent, lines 356–519
setting    full-batch Laplace and Gaussian noise against DP-SGD at equal ε
reduced    2,000 records of the three-armed cloud, 2 seeds
"""

from __future__ import annotations

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.training_curves import higher, learning, mean
from sordino_lab.workbench import Workbench

EPSILON = 3.0


def plans(bench: Workbench) -> list[CurvePlan]:
    """Three ways, each with its own number of steps for the same gradients computed."""
    passes = bench.pick(1, 30, 60, 100)
    base = {"optimizer": "sgd", "learning_rate": 1.0, "epsilon": EPSILON, "model": "mlp"}
    return [
        CurvePlan(
            label="DP-SGD, lots of 100",
            method="dpsgd",
            recipe="spiral",
            batch=100,
            records=2_000,
            epochs=passes,
            seeds=bench.pick(1, 2, 3, 5),
            evaluations=5,
            given=base,
        ),
        CurvePlan(
            label="full batch, Gaussian noise",
            method="moments",
            recipe="spiral",
            batch=2_000,
            records=2_000,
            epochs=passes,
            seeds=bench.pick(1, 2, 3, 5),
            evaluations=5,
            variant=1,
            given={**base, "sampler": "full"},
        ),
        CurvePlan(
            label="full batch, Laplace noise",
            method="laplace",
            recipe="spiral",
            batch=2_000,
            records=2_000,
            epochs=passes,
            seeds=bench.pick(1, 2, 3, 5),
            evaluations=5,
            variant=2,
            given={**base, "method": "dp-gd-laplace"},
        ),
    ]


def run(bench: Workbench) -> Outcome:
    """Accuracy against passes."""
    trained = bench.trained(plans(bench))
    return Outcome(
        learning(trained, "ε = 3, equal work"),
        findings=[
            higher(
                bench,
                trained[1],
                trained[2],
                "Gaussian noise for vectors (how about with Gaussian noise and vectors?)",
                "003:519",
                why="Laplace noise needs a bound in L1, √d times as far",
            ),
            Finding(
                "full batch leaks more, a stochastic gradient only glances",
                "003:564",
                bench.judged(mean(trained[0]) > mean(trained[1])),
                f"{mean(trained[0]):.1f} % with lots, {mean(trained[1]):.1f} % with all records in every step, at ε = "
                f"3 and {trained[0].runs[0].rows[-1]['epoch']:.0f} passes",
            ),
        ],
        commands=bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="dp-gd",
    source="003",
    figure="Private full-batch gradient descent",
    lines="356–519",
    title="Full-batch descent against DP-SGD",
    shows="Gaussian noise beats Laplace noise for vectors; sampled lots beat full batches for the same work",
    setting="full-batch Laplace and Gaussian noise against DP-SGD at equal ε",
    reduced="2,000 records of the three-armed cloud, 2 seeds",
    middle="2,000 records of the three-armed cloud, 60 passes, 3 seeds",
    nouns=("Full", "FlatL1", "Laplace"),
    terms="",
    seconds=15,
    run=run,
    plans=plans,
)
