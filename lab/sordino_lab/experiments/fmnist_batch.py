"""Fashion-MNIST: batch size against ε and accuracy.

source     004, Effects of batch size (a), (b), lines 302–312
setting    batch size against ε and accuracy, σ=.7, C=.5
reduced    8,000 records, 8 epochs, 2 seeds
"""

from __future__ import annotations

from sordino.app.report.panels import Panel, Series
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Outcome
from sordino_lab.fashion import fashion
from sordino_lab.training_curves import mean, no_guarantee, swept
from sordino_lab.workbench import Workbench

VALUES = (64.0, 256.0, 1024.0, 4096.0)


def plans(bench: Workbench) -> list[CurvePlan]:
    """One for each value."""
    return fashion(bench, VALUES, "size", lambda size: {"batch": size})


def run(bench: Workbench) -> Outcome:
    """ε and accuracy against it."""
    trained = dict(zip(VALUES, bench.trained(plans(bench)), strict=False))
    accuracy = {value: mean(one) for value, one in trained.items()}
    spent = {value: one.epsilon or 0.0 for value, one in trained.items()}
    return Outcome(
        [
            Panel(
                "privacy cost",
                "lot size",
                "ε at δ = 1e-5",
                [Series("", list(spent), list(spent.values()), method="pld")],
                xlog=True,
                ylog=True,
            ),
            Panel("test accuracy", "lot size", "test accuracy, %", [swept(trained, "")], xlog=True),
            Panel(
                "through training",
                "ε at δ = 1e-5",
                "test accuracy, %",
                [one.series(x="epsilon") for one in trained.values()],
            ),
        ],
        notes=[
            "The slides make no claim and print no numbers. The learning rate is the same for all lots. Here: "
            + ", ".join(f"lots of {v:g} have ε = {spent[v]:.2f} and {accuracy[v]:.1f} %" for v in trained),
            *no_guarantee(list(trained.values())),
        ],
        commands=bench.commands(plans(bench)),
        numbers={
            "epsilon": {f"{v:g}": e for v, e in spent.items()},
            "accuracy": {f"{v:g}": a for v, a in accuracy.items()},
        },
    )


EXPERIMENT = Experiment(
    id="fmnist-batch",
    source="004",
    figure="Effects of batch size (a), (b)",
    lines="302–312",
    title="Fashion-MNIST: batch size, ε and accuracy",
    shows="larger lots cost more ε per epoch and are less noisy",
    setting="batch size against ε and accuracy, σ=.7, C=.5",
    reduced="8,000 records, 8 epochs, 2 seeds",
    middle="nothing",
    nouns=("Flat", "PLD"),
    terms="",
    seconds=25,
    run=run,
    plans=plans,
)
