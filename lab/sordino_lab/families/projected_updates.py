"""ProjectedDPSGD: updates that look ahead, the figures of chapter 5 of source 001.

A first part of the update, 1/ρ of it, is taken virtually; the gradients at the virtual point make the rest. Noise is added
once, to the whole, so the virtual point is not private; `NoisyLookahead` is the form with a guarantee.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sordino.app.report.panels import Field, Panel, Series
from sordino.clipping.flat import Flat
from sordino.queries.noisy_sum import NoisySum, Query
from sordino.queries.projected import Projected
from sordino.release.noise import Gaussian
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.descent import descend
from sordino_lab.experiment import Compared, Figure, Finding, Outcome
from sordino_lab.thesis_plans import RATES, MethodComparison, Sentence, ThesisTable, draw_by_rate, plan_cifar
from sordino_lab.training_curves import (
    NOISELESS_LOOKAHEAD,
    TrainedCurve,
    draw_curves,
    judge_higher,
    note_missing,
    note_no_guarantee,
)
from sordino_lab.workbench import Workbench

TABLES: Mapping[str, ThesisTable] = {
    "projected-cifar": ThesisTable(
        "cifar",
        {
            "DP-SGD": [(2.07, 25.69), (1.81, 35.8), (1.95, 55.93)],
            "projected": [(2.07, 25.73), (1.81, 35.67), (2.07, 54.38)],
        },
        "T5.1, 001:979",
        "CIFAR-10, C = 1, ρ = 2",
        says=[
            Sentence(
                "in nearly all cases ProjectedDPSGD gives slightly worse results than DPSGD",
                "001:1069",
                [MethodComparison("DP-SGD", "projected", rate) for rate in RATES],
                exceptions=1,
            )
        ],
        notes=[
            "The source's ε = 1.729 is that of DP-SGD; its lookahead has none. NoisyLookahead is the form with a "
            "guarantee."
        ],
    ),
    "projected-cifar-noise": ThesisTable(
        "cifar",
        {
            "DP-SGD": [(2.07, 25.6), (1.77, 37.08), (2.12, 30.26)],
            "projected": [(2.07, 25.53), (1.77, 37.29), (2.1, 30.99)],
        },
        "T5.2, 001:1008",
        "CIFAR-10, C = 1, ρ = 2, σ = 2.6",
        given={"noise_multiplier": 2.6},
        notes=[
            "The source says that the difference at lr 1 is too small to be seen as an advantage (001:998).",
            "Its DP-SGD at lr .1 is better under σ = 2.6 than under 1.1 (37.08 % for 35.8 in T5.1): no effect of noise.",
        ],
    ),
}
"""Tables of learning curves, by id."""

LARGER_BOUNDS = (2.5, 5.0)
BOUND_SENTENCES = {
    1.0: "DPSGD keeps a higher value than ProjectedDPSGD",
    0.1: "in the other cases, too, ProjectedDPSGD is weaker than ordinary DPSGD (learning rate 0.1)",
    0.01: "in the other cases, too, ProjectedDPSGD is weaker than ordinary DPSGD (learning rate 0.01)",
}
"""What the source says of C = 5, by learning rate."""
BOTH_METHODS = ("DP-SGD", "projected")


def bound_label(way: str, rate: float, bound: float) -> str:
    """Returns the label of a curve."""
    return f"{way}, C = {bound:g}, lr {rate:g}"


def plan_bounds(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans of ProjectedDPSGD and DP-SGD at both larger bounds and all learning rates; at the size of the
    tests one rate.
    """
    # Both methods at each bound and rate, so that every pair differs in the lookahead alone.
    some = RATES[1:2] if bench.is_tiny else RATES
    return [
        replace(plan_cifar(bench, way, rate, bound), label=bound_label(way, rate, bound))
        for bound in LARGER_BOUNDS
        for rate in some
        for way in BOTH_METHODS
    ]


def draw_bounds(bench: Workbench) -> Outcome:
    """Draws ProjectedDPSGD against DP-SGD at larger bounds, two panels for each bound and learning rate."""
    # Curves that are not trained yet are left out and named in a note.
    plans = plan_bounds(bench)
    found = {one.plan.label: one for one in bench.find_trained(plans)}
    panels: list[Panel] = []
    for bound in LARGER_BOUNDS:
        of_bound = [plan for plan in plans if plan.given["bound"] == bound]
        some = [found[plan.label] for plan in of_bound if plan.label in found]
        panels += draw_by_rate(of_bound, some, f"CIFAR-10, C = {bound:g}, ρ = 2")
    findings = [
        judge_higher(
            bench,
            found[bound_label("DP-SGD", rate, 5.0)],
            found[bound_label("projected", rate, 5.0)],
            BOUND_SENTENCES[rate],
            "001:996",
        )
        for rate in RATES
        if {bound_label(way, rate, 5.0) for way in BOTH_METHODS} <= set(found)
    ]
    return Outcome(
        panels,
        findings=findings,
        notes=[
            "The source prints no numbers for this figure.",
            *note_missing(bench, plans),
            *note_no_guarantee(list(found.values())),
        ],
        commands=bench.commands(plans),
    )


COSINE_BOUNDS = (1.0, 5.0)


def plan_cosine(bench: Workbench, **network: Any) -> list[CurvePlan]:
    """Returns the plans of ProjectedDPSGD at both bounds and each learning rate, with the cosines of plain and
    projected updates; at the size of the tests one.
    """
    settings = [(bound, rate) for bound in COSINE_BOUNDS for rate in RATES]
    return [
        plan_cifar(bench, "projected", rate, bound, diagnose="substeps", **network)
        for bound, rate in settings[: 1 if bench.is_tiny else None]
    ]


@dataclass(frozen=True)
class UpdateCosinesByBound:
    """Panels of cosines by bound, with their deviation and least value by (bound, learning rate)."""

    panels: list[Panel]
    spread: dict[tuple[float, float], float]
    low: dict[tuple[float, float], float]
    trained: list[TrainedCurve]


def measure_cosines(bench: Workbench, wanted: Sequence[CurvePlan]) -> UpdateCosinesByBound:
    """Trains what is not there, and returns the cosines of plain and projected updates, a panel for each bound."""
    panels: list[Panel] = []
    spread: dict[tuple[float, float], float] = {}
    low: dict[tuple[float, float], float] = {}
    trained = bench.find_trained(wanted)
    # Bounds are panels, since curves of different bounds would hide one another.
    for bound in sorted({one.plan.given["bound"] for one in trained}):
        lines = []
        for one in (one for one in trained if one.plan.given["bound"] == bound):
            # The mean over seeds of the cosine at each step, with the least and the largest.
            values = one.diagnostic("substeps")
            # Cosines are one for each step, so their places are spread evenly up to the last epoch that was evaluated.
            at: Any = np.linspace(0, one.runs[0].rows[-1]["epoch"], values.shape[1]) if values.size else []
            lines.append(
                Series(
                    one.plan.label,
                    at,
                    values.mean(axis=0) if values.size else [],
                    low=values.min(axis=0) if values.size else (),
                    high=values.max(axis=0) if values.size else (),
                    method="projected",
                    variant=one.plan.variant,
                    hollow=one.hollow,
                )
            )
            # Without values the spread and the least cosine are those of a constant 1.
            rate = one.plan.given["learning_rate"]
            spread[bound, rate] = float(np.std(values)) if values.size else 0.0
            low[bound, rate] = float(np.min(values)) if values.size else 1.0
        panels.append(Panel(f"C = {bound:g}", "epochs", "cosine before noise", lines))
    return UpdateCosinesByBound(panels, spread, low, trained)


def draw_cosine(bench: Workbench) -> Outcome:
    """Draws the cosine of DP-SGD's update and ProjectedDPSGD's, before noise: with one noise in both it says nothing."""
    found = measure_cosines(bench, plan_cosine(bench))
    panels, spread, low, trained = found.panels, found.spread, found.low, found.trained
    # How far the cosine scatters with the learning rate at one bound, and with the bound at one learning rate.
    calm, fast, wild = (spread.get(setting) for setting in ((1.0, 0.1), (1.0, 1.0), (5.0, 1.0)))
    return Outcome(
        panels,
        findings=[
            Finding(
                "the cosine similarity of the two updates depends very much on the learning rate",
                "001:1000",
                None if calm is None or fast is None else bench.judge(fast > 2 * calm),
                f"deviation {fast or 0:.4f} at lr 1, {calm or 0:.4f} at lr 0.1, C = 1",
            ),
            Finding(
                "the clipping bound has a strong effect on the update step as well",
                "001:1004",
                None if wild is None or fast is None else bench.judge(wild > 2 * fast),
                f"deviation {wild or 0:.4f} at C = 5, {fast or 0:.4f} at C = 1, lr 1; least cosine "
                f"{low.get((5.0, 1.0), 1.0):.2f} and {low.get((1.0, 1.0), 1.0):.2f}",
            ),
        ],
        notes=[
            "Compared before noise, as the source does: the first part of the update against the whole. Disclosed in "
            "the claim, which has no guarantee anyway.",
            *note_missing(bench, plan_cosine(bench)),
            *note_no_guarantee(trained),
        ],
        commands=bench.commands(plan_cosine(bench)),
    )


def plan_cosine_resnet(bench: Workbench) -> list[CurvePlan]:
    """Returns both bounds at each learning rate on ResNet-18; at the size of the tests one."""
    return plan_cosine(bench, model="resnet18")


def draw_cosine_resnet(bench: Workbench) -> Outcome:
    """Draws the cosine of DP-SGD's update and ProjectedDPSGD's on ResNet-18, a panel for each bound."""
    found = measure_cosines(bench, plan_cosine_resnet(bench))
    at = found.spread
    return Outcome(
        found.panels,
        findings=[
            Finding(
                "with a large clipping bound the small learning rates are very similar, while learning rate 1.0 has a "
                "larger spread",
                "001:1056",
                bench.judge(at[5.0, 1.0] > 2 * max(at[5.0, 0.01], at[5.0, 0.1]))
                if {(5.0, rate) for rate in RATES} <= set(at)
                else None,
                ", ".join(f"C = {bound:g}, lr {rate:g}: deviation {value:.4f}" for (bound, rate), value in at.items()),
            )
        ],
        notes=[
            "The source fine-tunes a ResNet-18 that was trained before; this one begins with random weights.",
            *note_missing(bench, plan_cosine_resnet(bench)),
            *note_no_guarantee(found.trained),
        ],
        commands=bench.commands(plan_cosine_resnet(bench)),
    )


HILL_START, HILL_MINIMUM, HILL_STEPS, HILL_RATE, ARRIVED_WITHIN = (-2.6, 0.12), (2.2, 0.0), 60, 1.0, 0.35


def hill_height(u: Tensor, v: Tensor) -> Tensor:
    """Returns the height of a plane tilted towards u, with a bowl around the minimum and a hill at the origin."""
    bowl = torch.sqrt(1 + ((u - HILL_MINIMUM[0]) ** 2 + (v - HILL_MINIMUM[1]) ** 2))
    return bowl + 4.0 * torch.exp(-(u**2 + v**2) / 0.5)


def hill_loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns the height at θ, moved a little for each record."""
    theta = model.get_parameter("theta")
    return hill_height(theta[0] + x[:, 0], theta[1] + x[:, 1])


def draw_landscape(bench: Workbench) -> Outcome:
    """Draws the paths of SGD, ProjectedSGD, DP-SGD and ProjectedDPSGD around a hill to the minimum, on the surface and
    from above.
    """
    # Records differ a little, so that each has its own gradient to clip.
    rng = torch.Generator().manual_seed(0)
    x, y = 0.05 * torch.randn(40, 2, generator=rng), torch.zeros(40)
    steps = bench.pick(4, HILL_STEPS, HILL_STEPS, HILL_STEPS)
    seeds = bench.pick(1, 4, 10, 20)
    inf = float("inf")
    ways: dict[str, tuple[Query, str, str]] = {
        "SGD": (NoisySum(Flat(inf), Gaussian(0.0)), "sgd", "no noise"),
        "ProjectedSGD": (Projected(Flat(inf), Gaussian(0.0), HILL_RATE), "projected-sgd", "no noise"),
        "DP-SGD": (NoisySum(Flat(1.0), Gaussian(2.0)), "dpsgd", ""),
        "ProjectedDPSGD": (Projected(Flat(1.0), Gaussian(2.0), HILL_RATE), "projected", NOISELESS_LOOKAHEAD),
    }
    # The surface without the records' small shifts is what is drawn.
    u, v = np.linspace(-3.6, 3, 56), np.linspace(-1.6, 2.2, 38)
    grid = torch.stack(torch.meshgrid(torch.tensor(u), torch.tensor(v), indexing="xy"), -1).float()
    z = [row.tolist() for row in hill_height(grid[..., 0], grid[..., 1])]
    # One path of each method is drawn; steps and distances are means over seeds, strides the median of all steps.
    solid, above = [], []
    counts: dict[str, list[int]] = {}
    nearest: dict[str, float] = {}
    strides: dict[str, float] = {}
    for number, (name, (ask, method, reason)) in enumerate(ways.items()):
        # A path without noise is the same for every seed, so it is computed once.
        paths = [
            descend(HILL_START, hill_loss, x, y, ask, HILL_RATE, steps, seed=k).points
            for k in range(1 if reason == "no noise" else seeds)
        ]
        counts[name] = [_count_steps_to_arrival(points) for points in paths]
        # Paths are cut at their arrival: what noise does at the minimum afterwards would count as strides.
        ways_taken = [points[: count + 1] for points, count in zip(paths, counts[name], strict=True)]
        nearest[name] = float(np.mean([float(points.norm(dim=1).min()) for points in ways_taken]))
        every_stride = torch.cat([points.diff(dim=0).norm(dim=1) for points in ways_taken])
        strides[name] = float(every_stride.median())
        points = paths[0][: counts[name][0] + 1]
        # Paths are lifted a little, or the surface would hide them.
        lift = (hill_height(points[:, 0], points[:, 1]) + 0.03).tolist()
        said = f"{name}, {counts[name][0]} steps"
        solid.append(Series(said, points[:, 0], points[:, 1], z=lift, method=method, variant=number, hollow=reason))
        above.append(Series(said, points[:, 0], points[:, 1], method=method, variant=number, hollow=reason))
    # Where the paths begin, and where they lead.
    for variant, (said, (x_at, y_at)) in enumerate((("start", HILL_START), ("minimum", HILL_MINIMUM)), start=5):
        above.append(Series(said, [x_at], [y_at], method="theory", variant=variant, points=True))
    mean = {name: float(np.mean(found)) for name, found in counts.items()}
    return Outcome(
        [
            Panel("around the hill", "θ₁", "θ₂", solid, field=Field(u, v, z, surface=True), zlabel="loss"),
            Panel("from above", "θ₁", "θ₂", above, field=Field(u, v, z)),
        ],
        [
            Compared(
                f"steps of {name}", mean[said], said_there, "001:931", spread=float(np.std(counts[said])), unit="steps"
            )
            for name, said, said_there in (("ProjectedDPSGD", "ProjectedDPSGD", 23), ("DP-SGD", "DP-SGD", 27))
        ],
        [
            Finding(
                "this results in fewer steps",
                "001:931",
                bench.judge(mean["ProjectedDPSGD"] < mean["DP-SGD"]),
                f"{mean['ProjectedDPSGD']:.1f} against {mean['DP-SGD']:.1f} steps to within {ARRIVED_WITHIN} of the "
                f"minimum on our surface, {seeds} seeds",
            ),
            Finding(
                "ProjectedDPSGD stays closer to the foot of the hill in doing so",
                "001:931",
                bench.judge(nearest["ProjectedDPSGD"] < nearest["DP-SGD"]),
                f"it comes within {nearest['ProjectedDPSGD']:.2f} of the top, DP-SGD within {nearest['DP-SGD']:.2f}",
            ),
            Finding(
                "which are mostly shorter, too",
                "001:931",
                bench.judge(strides["ProjectedDPSGD"] < strides["DP-SGD"]),
                f"half of its steps are shorter than {strides['ProjectedDPSGD']:.3f}, half of DP-SGD's than "
                f"{strides['DP-SGD']:.3f}",
            ),
        ],
        ["The source does not give its surface; the counts depend on it, on the rate and on the noise."],
        numbers={"steps": counts},
    )


def _count_steps_to_arrival(points: Tensor) -> int:
    """Returns the steps until a path of plain or projected updates comes near the minimum behind the hill; all of them
    if it never does.
    """
    # The first step within reach counts; a path that never arrives counts all its steps.
    distance = (points - torch.tensor(HILL_MINIMUM)).norm(dim=1)
    near = torch.nonzero(distance < ARRIVED_WITHIN).flatten()
    return int(near[0]) if len(near) else len(points) - 1


def plan_private(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans of DP-SGD and of the two private lookaheads, the private forms of ProjectedDPSGD, at equal ε."""
    return [
        plan_cifar(bench, way, 0.1, 1.0, epsilon=3.0) for way in ("DP-SGD", "noisy lookahead", "optimistic lookahead")
    ]


def draw_private(bench: Workbench) -> Outcome:
    """Draws the private forms of ProjectedDPSGD against DP-SGD at equal ε."""
    note = "The source publishes no result of a private form. All three trainings are at ε = 3."
    return draw_curves(bench, plan_private(bench), "CIFAR-10", notes=[note])


def plan_resnet(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans of ProjectedDPSGD and DP-SGD at two bounds on ResNet-18, from random weights."""
    return [
        replace(
            plan_cifar(bench, method, 0.1, bound, model="resnet18"), label=f"{method}, C = {bound:g}", variant=variant
        )
        for variant, bound in enumerate((1.0, 5.0))
        for method in BOTH_METHODS
    ]


def draw_resnet(bench: Workbench) -> Outcome:
    """Draws ProjectedDPSGD against DP-SGD on ResNet-18 from random weights; the source fine-tunes a pretrained one."""

    def judge(trained: list[TrainedCurve]) -> list[Finding]:
        """Judges whether ProjectedDPSGD and DP-SGD at the small bound stay within a point of each other."""
        plain, projected = (one.series().y for one in trained[:2])
        gap = max(abs(a - b) for a, b in zip(plain, projected, strict=False))
        return [
            Finding(
                "with a small clipping bound the course is nearly identical",
                "001:1033",
                bench.judge(gap < 1.0),
                f"accuracies of C = 1 are at most {gap:.1f} points apart",
            )
        ]

    return draw_curves(
        bench,
        plan_resnet(bench),
        "ResNet-18 from scratch",
        judge,
        notes=["The source fine-tunes a ResNet-18 that was trained before; this one begins with random weights."],
    )


def plan_rounds(bench: Workbench) -> list[CurvePlan]:
    """Returns the plans of DP-SGD, and of ProjectedDPSGD with other ρ and with more rounds."""
    # At the largest rate and bound, where a look ahead moves farthest.
    base = plan_cifar(bench, "projected", 1.0, 5.0)
    some = (({"rho": 2.0}, "ρ = 2"), ({"rho": 4.0}, "ρ = 4"), ({"rho": 2.0, "rounds": 3.0}, "3 rounds"))
    return [
        plan_cifar(bench, "DP-SGD", 1.0, 5.0),
        *(replace(base, label=f"projected, {name}", parameters=own, variant=k) for k, (own, name) in enumerate(some)),
    ]


def draw_rounds(bench: Workbench) -> Outcome:
    """Draws ProjectedDPSGD with other ρ and with more rounds on the way."""
    note = (
        "The source only proposes more rounds, which could show the surroundings of an update more clearly (001:1095)."
    )
    return draw_curves(bench, plan_rounds(bench), "CIFAR-10", notes=[note])


FIGURES = {
    **{name: table.figure for name, table in TABLES.items()},
    "projected-cifar-bounds": Figure(draw_bounds, plan_bounds),
    "projected-cosine": Figure(draw_cosine, plan_cosine),
    "projected-cosine-resnet-scratch": Figure(draw_cosine_resnet, plan_cosine_resnet),
    "projected-landscape": Figure(draw_landscape),
    "projected-private": Figure(draw_private, plan_private),
    "projected-resnet-scratch": Figure(draw_resnet, plan_resnet),
    "outlook-rounds": Figure(draw_rounds, plan_rounds),
}
