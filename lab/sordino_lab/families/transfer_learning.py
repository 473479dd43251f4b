"""Transfer learning on CIFAR-10: public features against training from scratch, with and without DP (source 004)."""

from __future__ import annotations

from sordino.app.report.panels import Panel, Series
from sordino.app.runs.recipe import Recipe
from sordino.app.runs.settings import make_settings
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Figure, Finding, Outcome
from sordino_lab.thesis_plans import plan_cifar
from sordino_lab.training_curves import final_mean, note_no_guarantee
from sordino_lab.workbench import Workbench


def find_measured(name: str, epsilon: float) -> Recipe:
    """Returns a recipe with what was measured of it over three seeds on all records."""
    return make_settings(name, {"epsilon": epsilon}).recipe


def plan_transfer(bench: Workbench) -> list[CurvePlan]:
    """Returns training from scratch, private and not, and a head on frozen public features without DP."""
    records = bench.pick(None, 1_500, 10_000, None)
    head = CurvePlan(
        label="ImageNet features, frozen, without DP",
        method="transfer",
        recipe="cifar10-imagenet",
        batch=bench.pick(200, 100, 200, 200),
        records=records,
        epochs=bench.pick(1, 9, 10, 30),
        seeds=bench.pick(1, 2, 2, 1),
        evaluations=bench.pick(1, 3, 10, 30),
        given={"non_private": True, "normalise": None},
    )
    scratch = [
        plan_cifar(bench, "DP-SGD", 0.1, 1.0, epsilon=3.0),
        plan_cifar(bench, "DP-SGD", 0.01, 1.0, non_private=True),
    ]
    return [*scratch, head]


def draw_transfer(bench: Workbench) -> Outcome:
    """Draws accuracy against ε on public features and from scratch, and both without DP."""
    trained = bench.train(plan_transfer(bench))
    public = [(e, find_measured("cifar10-imagenet", e)) for e in (1.0, 2.0, 3.0)]
    wavelets = find_measured("cifar10", 3.0)
    scratch, plain, head = trained
    lines = [
        Series(
            "ImageNet features, frozen",
            [e for e, _ in public],
            [100 * (one.accuracy or 0) for _, one in public],
            method="transfer",
        ),
        Series(
            "wavelet features, nobody's data",
            [3.0],
            [100 * (wavelets.accuracy or 0)],
            method="pca",
            variant=1,
            points=True,
        ),
        Series("from scratch", [3.0], [final_mean(scratch)], method="dpsgd", variant=2, points=True),
    ]
    best = 100 * (public[-1][1].accuracy or 0)
    names = ("features, DP", "scratch, DP", "features, no DP", "scratch, no DP")
    return Outcome(
        [
            Panel("CIFAR-10", "ε at δ = 1e-5", "test accuracy, %", lines, ylim=(0, 100)),
            Panel(
                "with and without DP",
                "training",
                "test accuracy, %",
                [
                    Series("private, ε = 3", [0, 1], [best, final_mean(scratch)], method="dpsgd", points=True),
                    Series(
                        "without DP",
                        [2, 3],
                        [final_mean(head), final_mean(plain)],
                        method="sgd",
                        points=True,
                        hollow="no noise",
                    ),
                ],
                xticks=names,
                ylim=(0, 100),
            ),
        ],
        findings=[
            Finding(
                "a model pretrained on public data reaches a higher accuracy than one from scratch (both without DP)",
                "004:347",
                bench.judge(final_mean(head) > final_mean(plain)),
                f"without DP {final_mean(head):.1f} % on frozen ImageNet features and {final_mean(plain):.1f} % from "
                f"scratch; at ε = 3 {best:.1f} and {final_mean(scratch):.1f} %",
            )
        ],
        notes=[
            "The slide compares without DP, and prints no numbers. The features' accuracies are those that `sordino "
            "recipes` lists: three seeds, all records.",
            *note_no_guarantee(trained),
        ],
        commands=[*bench.commands(plan_transfer(bench)), "sordino train cifar10-imagenet --epsilon 3"],
    )


FIGURES = {"transfer-cifar": Figure(draw_transfer, plan_transfer)}
