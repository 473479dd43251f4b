"""MNIST behind a private PCA at three noise levels: accuracy and ε per epoch, train beside test.

source     002, Figure 3, lines 155–160
setting    DP-PCA 60, 1000 hidden, lot 600, C=4; (σ,σ_p) = (8,16), (4,7), (2,4)
           beside it the same network with all of ε spent
reduced    see lab/sordino_lab/abadi.py
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino.accounting import PLD
from sordino.app.report.panels import Panel, Series
from sordino.events import Gaussian, Poisson, Repeat, compose
from sordino_lab.abadi import DIFFERS, LEVELS, MIDDLE, NOISES, REDUCED, Within, plan, within
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Compared, Experiment, Finding, Outcome
from sordino_lab.size import ExperimentSize
from sordino_lab.trained import TrainedCurve
from sordino_lab.training_curves import mean
from sordino_lab.workbench import Workbench


def papers(bench: Workbench) -> list[CurvePlan]:
    """The three levels as printed; the training accuracy is looked at, which the claim then lists."""
    return [
        plan(bench, noise, pca, label=f"σ = {noise:g}, PCA {pca:g}", variant=k, show_private=True)
        for k, (noise, pca) in enumerate(NOISES)
    ]


def plans(bench: Workbench) -> list[CurvePlan]:
    """As printed, and with all of each ε spent."""
    return [*papers(bench), *(within(bench, one, k) for k, one in enumerate(LEVELS))]


def run(bench: Workbench) -> Outcome:
    """Accuracy per epoch, ε per epoch, accuracy against ε."""
    every = bench.trained(plans(bench))
    printed, spent = every[: len(NOISES)], every[len(NOISES) :]
    rows = [
        Compared(
            f"accuracy, {one.plan.label}, ε = {one.epsilon or 0:.2f}",
            one.last()[0],
            level.published,
            "002:160",
            one.last()[1],
            "%",
        )
        for ones in (spent, printed)
        for one, level in zip(ones, LEVELS, strict=True)
    ]
    looked = [one for one in every if one.series("train_accuracy").x]
    together = Finding(
        "training and test accuracy go together",
        "002:160",
        bench.judged(all(abs(mean(one, "train_accuracy") - mean(one)) < 4 for one in looked)) if looked else None,
        ", ".join(f"{mean(one, 'train_accuracy'):.1f} train, {mean(one):.1f} test" for one in looked)
        or "not looked at",
    )
    return Outcome(
        [
            Panel("as printed", "epochs", "accuracy, %", _with_train(printed), xlog=True),
            Panel("all of ε spent", "epochs", "accuracy, %", _with_train(spent), xlog=True),
            Panel(
                "privacy spent",
                "epochs",
                "ε at δ = 1e-5",
                [one.series("epsilon") for one in every],
                xlog=True,
                ylog=True,
            ),
            _draw_delta(bench),
            Panel(
                "what ε buys",
                "ε at δ = 1e-5",
                "test accuracy, %",
                [one.series(x="epsilon") for one in every],
                xlog=True,
            ),
        ],
        rows,
        [*(_reached(bench, level, *pair) for level, *pair in zip(LEVELS, spent, printed, strict=True)), together],
        [
            "The published 95 and 97 % took some 200 and 700 epochs in the original; as printed, --full runs 100, 300 and "
            "700, within each ε. Accountant: PLD; the private PCA is in the claim.",
            f"Where all of ε is spent the network is the paper's, and this differs: {DIFFERS}. Chosen on training images "
            "held out for that (bench/stand_in.py), never on the test images; no ε here covers that choice.",
        ],
        bench.commands(plans(bench)),
    )


def _reached(bench: Workbench, level: Within, spent: TrainedCurve, printed: TrainedCurve) -> Finding:
    """Whether the published accuracy is there within the published ε."""
    accuracy, spread = spent.last()
    inside = (spent.epsilon or 99.0) <= level.epsilon
    told = bench.tells and (bench.size is not ExperimentSize.QUICK or accuracy >= level.published)
    return Finding(
        f"{level.published:g} % at ε = {level.epsilon:g}",
        "002:160",
        (inside and accuracy >= level.published) if told else None,
        f"{accuracy:.1f} ± {spread:.1f} % at ε = {spent.epsilon or 0:.3f} (PLD, PCA counted) after "
        f"{spent.runs[0].rows[-1]['epoch']:.0f} epochs; with the printed rate and lots {mean(printed):.1f} % at "
        f"{printed.epsilon or 0:.2f} after {printed.runs[0].rows[-1]['epoch']:.0f}",
    )


def _draw_delta(bench: Workbench) -> Panel:
    """Returns δ against epochs at the fixed ε of each noise level, as figure 3 of the paper does, by PLD."""
    lines = []
    for k, ((noise, pca), level) in enumerate(zip(NOISES, LEVELS, strict=True)):
        last = {8.0: 100, 4.0: 300, 2.0: 700}[noise]
        epochs = [round(last * part / 10) for part in range(1, 11)] if bench.tells else [last]
        deltas = [
            PLD().delta(compose([Gaussian(pca), Repeat(Poisson(0.01, Gaussian(noise)), 100 * each)]), level.epsilon)
            for each in epochs
        ]
        lines.append(Series(f"σ = {noise:g}, ε = {level.epsilon:g}", epochs, deltas, method="pld", variant=k))
    return Panel("δ at a fixed ε", "epochs", "δ", lines, xlog=True, ylog=True)


def _with_train(ones: Sequence[TrainedCurve]) -> list[Series]:
    """Test accuracy, and the training accuracy of those where it was looked at."""
    train = [
        Series(f"train, {one.plan.label}", s.x, s.y, low=s.low, high=s.high, method="none", variant=one.plan.variant)
        for one in ones
        if (s := one.series("train_accuracy")).x
    ]
    return [*(one.series() for one in ones), *train]


EXPERIMENT = Experiment(
    id="abadi-mnist",
    source="002",
    figure="Figure 3",
    lines="155–160",
    title="MNIST at three noise levels",
    shows="90, 95 and 97 % at ε = 0.5, 2 and 8",
    setting="DP-PCA 60, 1000 hidden, lot 600, C=4; (σ,σ_p) = (8,16), (4,7), (2,4)",
    reduced=REDUCED,
    middle=MIDDLE,
    nouns=("PCA", "Flat", "PLD"),
    terms="",
    seconds=35,
    run=run,
    plans=plans,
)
