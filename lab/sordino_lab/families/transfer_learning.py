"""Transfer learning on CIFAR-10: public features against training from scratch, with and without DP (source 004).

Both sides train on the same records in the same lots for as many epochs. The features are those of EfficientNet-Lite0,
trained on ImageNet and frozen. Beside them the end of that network is fine-tuned for a sixth of the epochs, without DP, as
the slide has it. What `sordino recipes` measured with more suitable lots is drawn too.
"""

from __future__ import annotations

from dataclasses import replace

from sordino.app.report.panels import Panel, Series
from sordino.app.runs.recipe import Recipe
from sordino.app.runs.settings import make_settings
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Figure, Finding, Outcome
from sordino_lab.thesis_plans import plan_cifar
from sordino_lab.training_curves import final_mean, note_no_guarantee
from sordino_lab.verdicts import is_better
from sordino_lab.workbench import Workbench

EPSILON = 3.0
ON_FEATURES, FROM_SCRATCH, FINE_TUNED = "ImageNet features, frozen", "from scratch", "ImageNet network, end fine-tuned"
FINE_TUNING_EPOCHS = 5
"""A pretrained network needs fewer epochs than one from scratch, which has 30."""


def find_measured(name: str, epsilon: float) -> Recipe:
    """Returns a recipe with what was measured of it over three seeds on all records."""
    return make_settings(name, {"epsilon": epsilon}).recipe


def plan_transfer(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans of transfer learning: a head on public features and a network from scratch, each with and
    without DP, and a pretrained network whose end is fine-tuned without DP, on the same records.
    """
    # Four trainings on the same records and lots: they differ in features and in privacy alone.
    private = plan_cifar(bench, "DP-SGD", 0.1, 1.0, epsilon=EPSILON)
    plain = plan_cifar(bench, "DP-SGD", 0.1, 1.0, non_private=True)
    head = replace(private, recipe="cifar10-imagenet", method="transfer")
    tuned = plan_cifar(bench, "DP-SGD", 0.01, 1.0, epochs=FINE_TUNING_EPOCHS, non_private=True)
    given = {**tuned.given, "features": "efficientnet-lite0-maps", "model": "efficientnet-end"}
    return [
        replace(private, label=f"{FROM_SCRATCH}, ε = {EPSILON:g}"),
        replace(plain, label=f"{FROM_SCRATCH}, without DP"),
        replace(head, label=f"{ON_FEATURES}, ε = {EPSILON:g}", given={"epsilon": EPSILON}),
        replace(head, label=f"{ON_FEATURES}, without DP", given={"non_private": True, "normalise": None}),
        replace(tuned, label=f"{FINE_TUNED}, without DP", method="transfer", variant=3, seeds=1, given=given),
    ]


def draw_transfer(bench: Workbench) -> Outcome:
    """Draws transfer learning on CIFAR-10: accuracy on public features and from scratch, with and without DP, and what
    recipes measured against ε.
    """
    # Trained here side by side, and beside them what the recipes reach with lots and steps of their own.
    trained = bench.train(plan_transfer(bench))
    scratch, plain_scratch, head, plain_head, tuned = (final_mean(one) for one in trained)
    measured = [(epsilon, find_measured("cifar10-imagenet", epsilon)) for epsilon in (1.0, 2.0, 3.0)]
    wavelets = find_measured("cifar10", EPSILON)
    against_epsilon = [
        Series(
            f"{ON_FEATURES}, as `sordino recipes` measured it",
            [epsilon for epsilon, _ in measured],
            [100 * (one.accuracy or 0) for _, one in measured],
            method="transfer",
        ),
        Series(
            f"{ON_FEATURES}, as many steps as from scratch",
            [EPSILON],
            [head],
            method="transfer",
            variant=1,
            points=True,
        ),
        Series(
            "wavelet features, nobody's data",
            [EPSILON],
            [100 * (wavelets.accuracy or 0)],
            method="pca",
            variant=1,
            points=True,
        ),
        Series(FROM_SCRATCH, [EPSILON], [scratch], method="dpsgd", variant=2, points=True),
    ]
    # The slide compares without DP; the private pair stands beside it to show that the gap is larger there.
    side_by_side = [
        Series("private, ε = 3", [0, 1], [head, scratch], method="dpsgd", points=True),
        Series(
            "without DP", [2, 3, 4], [plain_head, tuned, plain_scratch], method="sgd", points=True, hollow="no noise"
        ),
    ]
    names = ("features, DP", "scratch, DP", "features, no DP", "fine-tuned, no DP", "scratch, no DP")
    return Outcome(
        [
            Panel("CIFAR-10", "ε at δ = 1e-5", "test accuracy, %", against_epsilon, ylim=(0, 100)),
            Panel(
                "with and without DP, on the same records",
                "training",
                "test accuracy, %",
                side_by_side,
                xticks=names,
                ylim=(0, 100),
            ),
        ],
        findings=[
            Finding(
                "one solution to improve accuracy while minimizing computational cost is transfer learning, in which data "
                "is pretrained on public data",
                "004:327",
                bench.judge(is_better(trained[3], trained[1])),
                f"without DP {plain_head:.1f} % on frozen ImageNet features, {tuned:.1f} % with the network's end "
                f"fine-tuned and {plain_scratch:.1f} % from scratch; at ε = 3 {head:.1f} % on the features and "
                f"{scratch:.1f} % from scratch, all on the same records in the same lots",
            )
        ],
        notes=[
            "The slide compares without DP, and prints no numbers. Accuracies against ε are those that `sordino recipes` "
            "lists, with lots and steps of their own: three seeds, all records.",
            "Fine-tuned are the last bottleneck, the last convolution and the classifier, over "
            f"{FINE_TUNING_EPOCHS} epochs at learning rate 0.01; the layers before them are frozen.",
            *note_no_guarantee(trained),
        ],
        commands=[*bench.commands(plan_transfer(bench)), "sordino train cifar10-imagenet --epsilon 3"],
    )


FIGURES = {
    "transfer-cifar": Figure(draw_transfer, plan_transfer),
}
