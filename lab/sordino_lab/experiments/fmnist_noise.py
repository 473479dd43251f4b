"""Fashion-MNIST by logistic regression: ε and accuracy for several σ.

source     004, Experimental results (a), (b), lines 287–295
setting    logistic regression, C=.5, several σ, δ=1e-5
reduced    8,000 records, 8 epochs, 2 seeds
"""

from __future__ import annotations

from sordino.app.report.panels import Panel, Series
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.fashion import fashion
from sordino_lab.training_curves import mean, no_guarantee, swept
from sordino_lab.workbench import Workbench

VALUES = (0.5, 0.7, 1.0, 2.0, 4.0)


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
            Panel(
                "privacy cost",
                "noise multiplier σ",
                "ε at δ = 1e-5",
                [Series("", list(spent), list(spent.values()), method="pld")],
                xlog=True,
                ylog=True,
            ),
            Panel("test accuracy", "noise multiplier σ", "test accuracy, %", [swept(trained, "")], xlog=True),
            Panel(
                "through training",
                "ε at δ = 1e-5",
                "test accuracy, %",
                [one.series(x="epsilon") for one in trained.values()],
            ),
        ],
        notes=[
            "The slides make no claim and print no numbers. Here: "
            + ", ".join(f"σ = {v:g} has ε = {spent[v]:.2f} and {accuracy[v]:.1f} %" for v in trained),
            *no_guarantee(list(trained.values())),
        ],
        commands=bench.commands(plans(bench)),
        numbers={
            "epsilon": {f"{v:g}": e for v, e in spent.items()},
            "accuracy": {f"{v:g}": a for v, a in accuracy.items()},
        },
    )


EXPERIMENT = Experiment(
    id="fmnist-noise",
    source="004",
    figure="Experimental results (a), (b)",
    lines="287–295",
    title="Fashion-MNIST: noise, ε and accuracy",
    shows="ε falls fast with the noise, accuracy slowly",
    setting="logistic regression, C=.5, several σ, δ=1e-5",
    reduced="8,000 records, 8 epochs, 2 seeds",
    middle="nothing",
    nouns=("Flat", "PLD"),
    terms="",
    seconds=25,
    run=run,
    plans=plans,
)
