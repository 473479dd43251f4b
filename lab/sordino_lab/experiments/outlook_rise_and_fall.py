"""A learning rate that rises and falls, for sorted lots.

source     001, outlook c), lines 833
setting    a learning rate that is small, rises and falls, for sorted lots
reduced    see lab/sordino_lab/thesis.py
"""

from __future__ import annotations

from dataclasses import replace

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.thesis import CIFAR, CIFAR_MIDDLE, cifar
from sordino_lab.trained import TrainedCurve
from sordino_lab.training_curves import against, learning, no_guarantee
from sordino_lab.workbench import Workbench


def plans(bench: Workbench) -> list[CurvePlan]:
    """Every curve."""
    base = cifar(bench, "sorted", 1.0, 5.0)
    risen = replace(
        base,
        label="sorted, rise and fall",
        given={**base.given, "schedule": "rise-and-fall", "schedule_per": "step", "final_rate": 0.01},
        variant=0,
    )
    return [base, risen]


def most(one: TrainedCurve) -> float:
    """The largest test loss of any seed on the way."""
    return max((float(row["test_loss"]) for run in one.runs for row in run.rows), default=0.0)


def run(bench: Workbench) -> Outcome:
    """Train, draw, judge."""
    trained = bench.trained(plans(bench))
    return Outcome(
        learning(trained, "CIFAR-10"),
        against(trained, {}, ""),
        [
            Finding(
                "a rate that is small at first could keep the loss from rising too much",
                "001:833",
                bench.judged(most(trained[1]) < most(trained[0])),
                f"largest test loss on the way: {most(trained[0]):.2f} by the cosine, {most(trained[1]):.2f} rising "
                "and falling",
            )
        ],
        [*[], *no_guarantee(trained)],
        bench.commands(plans(bench)),
    )


EXPERIMENT = Experiment(
    id="outlook-rise-and-fall",
    source="001",
    figure="outlook c)",
    lines="833",
    title="Outlook: a rate that rises and falls",
    shows="a rate that begins small keeps the loss from rising at first",
    setting="a learning rate that is small, rises and falls, for sorted lots",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("RiseAndFall", "Sorted"),
    terms="Learningrate",
    seconds=30,
    run=run,
    plans=plans,
)
