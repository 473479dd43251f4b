"""Fashion-MNIST by logistic regression, accuracy class by class, and noise on a CNN: trainings of source 004.

full, middle   60,000 records, 20 epochs, 3 seeds
quick          8,000 records, 8 epochs, 2 seeds
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from sordino.app.report.panels import Panel, Series
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Figure, Finding, Outcome
from sordino_lab.training_curves import TrainedCurve, draw_learning, draw_swept, final_mean, note_no_guarantee
from sordino_lab.verdicts import is_better, require_all
from sordino_lab.workbench import Workbench

RECORDS = 60_000
NOISES = (0.5, 0.7, 1.0, 2.0, 4.0)
LOT_SIZES = (64.0, 256.0, 1024.0, 4096.0)


def plan_fashion(
    bench: Workbench, values: Sequence[float], label: str, setting: Callable[[float], dict[str, Any]]
) -> list[CurvePlan]:
    """Returns a plan of logistic regression on Fashion-MNIST for each value; `setting` says what of a plan the value
    decides.
    """
    n = bench.pick(RECORDS, 8_000, RECORDS, RECORDS)
    return [
        CurvePlan(
            label=f"{label} = {value:g}",
            method="dpsgd",
            recipe="fashion-logistic",
            records=n if n < RECORDS else None,
            epochs=bench.pick(1, 8, 20, 20),
            seeds=bench.pick(1, 2, 3, 3),
            evaluations=bench.pick(1, 6, 10, 20),
            variant=k,
            **setting(value),
        )
        for k, value in enumerate(values[:1] if bench.is_tiny else values)
    ]


def plan_noise(bench: Workbench, noises: Sequence[float] = NOISES) -> list[CurvePlan]:
    """Returns a plan for each noise multiplier."""
    return plan_fashion(bench, noises, "σ", lambda noise: {"batch": 256, "given": {"noise_multiplier": noise}})


def plan_tradeoff(bench: Workbench) -> list[CurvePlan]:
    """Returns the plan of σ = 0.7."""
    return plan_noise(bench, (0.7,))


def plan_batch(bench: Workbench) -> list[CurvePlan]:
    """Returns a plan for each lot size."""
    return plan_fashion(bench, LOT_SIZES, "lot size", lambda size: {"batch": size})


def draw_noise(bench: Workbench) -> Outcome:
    """Draws ε and accuracy of logistic regression on Fashion-MNIST against the noise multiplier."""
    trained = dict(zip(NOISES, bench.train(plan_noise(bench)), strict=False))

    def describe(value: float, epsilon: float, accuracy: float) -> str:
        return f"σ = {value:g} has ε = {epsilon:.2f} and {accuracy:.1f} %"

    return _draw_swept_fashion(bench, trained, plan_noise(bench), "noise multiplier σ", describe)


def draw_batch(bench: Workbench) -> Outcome:
    """Draws ε and accuracy of logistic regression on Fashion-MNIST against the lot size."""
    trained = dict(zip(LOT_SIZES, bench.train(plan_batch(bench)), strict=False))

    def describe(value: float, epsilon: float, accuracy: float) -> str:
        return f"lots of {value:g} have ε = {epsilon:.2f} and {accuracy:.1f} %"

    same = " The learning rate is the same for all lots."
    return _draw_swept_fashion(bench, trained, plan_batch(bench), "lot size", describe, same)


def _draw_swept_fashion(
    bench: Workbench,
    trained: Mapping[float, TrainedCurve],
    plans: Sequence[CurvePlan],
    axis: str,
    describe: Callable[[float, float, float], str],
    remark: str = "",
) -> Outcome:
    """Draws ε and final accuracy on Fashion-MNIST against a setting, and accuracy against ε through training."""
    # The slides print no numbers, so ours are kept for the page and said in the note.
    numbers = _collect_numbers(trained)
    spent, accuracy = ({float(v): number for v, number in numbers[name].items()} for name in ("epsilon", "accuracy"))
    epsilon = Series("", list(trained), list(spent.values()), method="pld")
    said = ", ".join(describe(v, spent[v], accuracy[v]) for v in trained)
    return Outcome(
        [
            Panel("privacy cost", axis, "ε at δ = 1e-5", [epsilon], xlog=True, ylog=True),
            Panel("test accuracy", axis, "test accuracy, %", [draw_swept(trained, "")], xlog=True),
            _draw_through_training(trained),
        ],
        notes=[
            f"The slides make no claim and print no numbers.{remark} Here: {said}",
            *note_no_guarantee(list(trained.values())),
        ],
        commands=bench.commands(plans),
        numbers=numbers,
    )


def draw_tradeoff(bench: Workbench) -> Outcome:
    """Draws ε and accuracy through training on Fashion-MNIST, and the one against the other."""
    trained = dict(zip((0.7,), bench.train(plan_tradeoff(bench)), strict=False))
    # A few early evaluations and the last one tell the course of a training.
    curves = list(trained.values())
    rows = [row for one in curves for row in (*one.runs[0].rows[:3], one.runs[0].rows[-1])]
    said = ", ".join(f"{100 * row['test_accuracy']:.1f} % at ε = {row['epsilon']:.2f}" for row in rows)
    return Outcome(
        [
            Panel("privacy cost", "epochs", "ε at δ = 1e-5", [one.series("epsilon") for one in curves]),
            Panel("test accuracy", "epochs", "test accuracy, %", [one.series() for one in curves]),
            _draw_through_training(trained),
        ],
        notes=[f"The slides make no claim and print no numbers. Here: {said}", *note_no_guarantee(curves)],
        commands=bench.commands(plan_tradeoff(bench)),
        numbers=_collect_numbers(trained),
    )


def _draw_through_training(trained: Mapping[float, TrainedCurve]) -> Panel:
    """Returns the panel of accuracy against ε through training."""
    lines = [one.series(x="epsilon") for one in trained.values()]
    return Panel("through training", "ε at δ = 1e-5", "test accuracy, %", lines, xlog=True)


def _collect_numbers(trained: Mapping[float, TrainedCurve]) -> dict[str, dict[str, float]]:
    """Returns ε and final accuracy of trainings on Fashion-MNIST, by the value that was swept."""
    return {
        "epsilon": {f"{v:g}": one.epsilon or 0.0 for v, one in trained.items()},
        "accuracy": {f"{v:g}": final_mean(one) for v, one in trained.items()},
    }


_ASIDE = 0.22
"""How far apart the marks of one class stand, where classes are one apart."""
CLASS_NAMES = ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "boot")


def plan_classes(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans of trainings on Fashion-MNIST without DP and at two noises, whose accuracies are taken class by
    class.
    """
    base: dict[str, Any] = {
        "recipe": "fashion-logistic",
        "batch": 256,
        "records": bench.pick(None, 6_000, None, None),
        "epochs": bench.pick(1, 6, 15, 20),
        "seeds": bench.pick(1, 2, 3, 3),
        "evaluations": 3,
    }
    return [
        CurvePlan(label="without DP", method="sgd", given={"non_private": True, "learning_rate": 0.1}, **base),
        CurvePlan(label="σ = 0.7", method="dpsgd", variant=1, given={"noise_multiplier": 0.7}, **base),
        CurvePlan(label="σ = 4", method="dpsgd", variant=2, given={"noise_multiplier": 4.0}, **base),
    ]


def accuracy_by_class(one: TrainedCurve) -> np.ndarray:
    """Returns the mean over seeds of the last accuracy of each class of Fashion-MNIST, in percent."""
    rows = [
        [np.nan if v is None else v for v in run.rows[-1]["test_by_class"]]
        for run in one.runs
        if run.rows and run.rows[-1].get("test_by_class")
    ]
    return 100 * np.mean(np.asarray(rows, dtype=float), axis=0) if rows else np.zeros(10)


def draw_classes(bench: Workbench) -> Outcome:
    """Draws accuracy on Fashion-MNIST class by class with and without DP, and what each class loses."""
    trained = bench.train(plan_classes(bench))
    # The first is without privacy, and the last has the most noise.
    found = [accuracy_by_class(one) for one in trained]
    count = len(found[0])
    names = CLASS_NAMES[:count] if count == 10 else tuple(str(k) for k in range(count))
    drop = found[0] - found[-1]
    # The marks of a class stand side by side, since some of them are equal.
    lines = [
        Series(
            one.plan.label,
            [at + (k - (len(trained) - 1) / 2) * _ASIDE for at in range(count)],
            values,
            method=one.plan.method,
            variant=one.plan.variant,
            points=True,
            hollow=one.hollow,
        )
        for k, (one, values) in enumerate(zip(trained, found, strict=True))
    ]
    # A class counts as hard if it is below the median without privacy.
    hard = found[0] < np.median(found[0])
    return Outcome(
        [
            Panel("Fashion-MNIST, class by class", "class", "test accuracy, %", lines, xticks=tuple(names)),
            Panel(
                "lost between no DP and σ = 4",
                "class",
                "accuracy lost, points",
                [Series("", range(count), drop, method="dpsgd", points=True)],
                xticks=tuple(names),
            ),
        ],
        findings=[
            Finding(
                "due to noise addition and clipping, DP-SGD is less accurate than non-DP approaches",
                "004:319",
                bench.judge(require_all(is_better(trained[0], one) for one in trained[1:])),
                ", ".join(
                    f"{one.describe_final()} {'' if k == 0 else 'at '}{one.plan.label}" for k, one in enumerate(trained)
                ),
            ),
        ],
        notes=[
            "Line 381 only lists the paper of Bagdasaryan and Shmatikov, whose title says that differential privacy has "
            f"disparate impact. Here the classes below the median without DP lose {_mean_of(drop[hard]):.1f} "
            f"points, the others {_mean_of(drop[~hard]):.1f}.",
            "The network without DP has a rate of 0.1: at the private one's it was unstable.",
            *note_no_guarantee(trained),
        ],
        commands=bench.commands(plan_classes(bench)),
    )


def _mean_of(values: np.ndarray) -> float:
    """Returns the mean of what some classes of Fashion-MNIST lose; 0 where there are none."""
    return float(values.mean()) if values.size else 0.0


CNN_NOISES = (0.0, 0.5, 1.0, 2.0, 4.0)


def plan_convergence(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans of a CNN on MNIST, beside those of Fashion-MNIST, one for each noise; σ = 0 has no guarantee."""
    # The slides count iterations, so epochs follow from the number of records.
    records, iterations = bench.pick(60_000, 4_000, 60_000, 60_000), bench.pick(3, 120, 500, 500)
    some = CNN_NOISES[:2] if bench.is_tiny else CNN_NOISES
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


def draw_convergence(bench: Workbench) -> Outcome:
    """Draws the convergence of a CNN on MNIST, beside the figures of Fashion-MNIST, under several noise scales."""
    trained = bench.train(plan_convergence(bench))
    return Outcome(
        draw_learning(trained, "CNN on MNIST", against="step"),  # the slides count iterations
        notes=[
            "The slide makes no claim and prints neither numbers nor its lot and bound. Here lots have 64 records and "
            "C = 1, and accuracies end at: "
            + ", ".join(f"{final_mean(one):.1f} % for {one.plan.label}" for one in trained)
            + "."
        ],
        commands=bench.commands(plan_convergence(bench)),
    )


FIGURES = {
    "fmnist-noise": Figure(draw_noise, plan_noise),
    "fmnist-tradeoff": Figure(draw_tradeoff, plan_tradeoff),
    "fmnist-batch": Figure(draw_batch, plan_batch),
    "disparate-impact": Figure(draw_classes, plan_classes),
    "noise-convergence": Figure(draw_convergence, plan_convergence),
}
