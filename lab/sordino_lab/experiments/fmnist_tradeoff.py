"""Fashion-MNIST: test accuracy against ε through training.

source     004, Accuracy-privacy trade-off, lines 297–300
setting    accuracy against ε through training, σ=.7, C=.5
reduced    8,000 records, 8 epochs, 2 seeds
"""

from __future__ import annotations

from sordino.app.report.panels import Panel
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.fashion import fashion
from sordino_lab.training_curves import mean, no_guarantee
from sordino_lab.workbench import Workbench

VALUES = (0.7,)


def plans(bench: Workbench) -> list[CurvePlan]:
    """One for each value."""
    return fashion(bench, VALUES, "σ", lambda σ: {"batch": 256, "given": {"noise_multiplier": σ}})


def run(bench: Workbench) -> Outcome:
    """ε and accuracy against it."""
    trained = dict(zip(VALUES, bench.trained(plans(bench)), strict=False))
    accuracy = {value: mean(one) for value, one in trained.items()}
    spent = {value: one.epsilon or 0.0 for value, one in trained.items()}
    return Outcome(
        [
            Panel("privacy cost", "epochs", "ε at δ = 1e-5", [one.series("epsilon") for one in trained.values()]),
            Panel("test accuracy", "epochs", "test accuracy, %", [one.series() for one in trained.values()]),
            Panel(
                "through training",
                "ε at δ = 1e-5",
                "test accuracy, %",
                [one.series(x="epsilon") for one in trained.values()],
            ),
        ],
        notes=[
            "The slides make no claim and print no numbers. Here: "
            + ", ".join(
                f"{100 * row['test_accuracy']:.1f} % at ε = {row['epsilon']:.2f}"
                for one in trained.values()
                for row in (*one.runs[0].rows[:3], one.runs[0].rows[-1])
            ),
            *no_guarantee(list(trained.values())),
        ],
        commands=bench.commands(plans(bench)),
        numbers={
            "epsilon": {f"{v:g}": e for v, e in spent.items()},
            "accuracy": {f"{v:g}": a for v, a in accuracy.items()},
        },
    )


EXPERIMENT = Experiment(
    id="fmnist-tradeoff",
    source="004",
    figure="Accuracy-privacy trade-off",
    lines="297–300",
    title="Fashion-MNIST: accuracy against ε",
    shows="most of the accuracy is bought by the first ε",
    setting="accuracy against ε through training, σ=.7, C=.5",
    reduced="8,000 records, 8 epochs, 2 seeds",
    middle="nothing",
    nouns=("Flat", "PLD"),
    terms="",
    seconds=25,
    run=run,
    plans=plans,
)
