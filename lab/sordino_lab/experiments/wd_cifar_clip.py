"""The clip bound swept on CIFAR-10: both methods, final accuracy.

source     000, "CIFAR-10: Clipping Threshold R", lines 422–430
setting    R ∈ (0.2, 1.0, 2.0, 5.0, 10.0), the rest as in the baseline
reduced    see lab/sordino_lab/slides.py
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.slides import CIFAR, CIFAR_MIDDLE, INSIDE, OUTSIDE, cifar
from sordino_lab.sweep import Grid, Sweep
from sordino_lab.training_curves import mean
from sordino_lab.workbench import Workbench


def values(bench: Workbench, way: str) -> Sequence[float]:
    """The source's bounds."""
    return bench.pick((0.2,), (0.2, 2.0, 10.0), (0.2, 1.0, 2.0, 5.0, 10.0), (0.2, 1.0, 2.0, 5.0, 10.0))


def plan(bench: Workbench, way: str, value: float) -> CurvePlan:
    """One run."""
    return cifar(bench, way, label=f"{way}, R = {value:g}", bound=value)


SWEEP = Sweep("clip bound R", values, plan, (OUTSIDE, INSIDE), "CIFAR-10, λ = 1e-4")


def judge(bench: Workbench, grid: Grid) -> list[Finding]:
    """The source's sentences."""
    outside, inside = ([mean(one) for one in grid[way].values()] for way in (OUTSIDE, INSIDE))
    ahead = sum(i > o for i, o in zip(inside, outside, strict=True))
    return [
        Finding(
            "the performance of both deteriorates as R decreases",
            "000:426",
            bench.judged(outside[0] < outside[-1] and inside[0] < inside[-1]),
            f"{outside[0]:.1f} and {inside[0]:.1f} % at the smallest R, {outside[-1]:.1f} and {inside[-1]:.1f} % at "
            "the largest",
        ),
        Finding(
            "among all R our method performs better than DP-SGD",
            "000:426",
            bench.judged(ahead == len(inside)),
            f"L2 inside is ahead at {ahead} of {len(inside)} bounds, by "
            f"{max(i - o for i, o in zip(inside, outside, strict=True)):+.2f} points at most",
        ),
    ]


def run(bench: Workbench) -> Outcome:
    """Final accuracy against clip bound R."""
    return SWEEP.outcome(bench, judge)


EXPERIMENT = Experiment(
    id="wd-cifar-clip",
    source="000",
    figure="CIFAR-10: Clipping Threshold R",
    lines="422–430",
    title="The clip bound on CIFAR-10",
    shows="both fall as R falls, and at λ = 1e-4 they are the same within the spread",
    setting="R ∈ (0.2, 1.0, 2.0, 5.0, 10.0), the rest as in the baseline",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("L2", "Flat"),
    seconds=40,
    run=run,
    plans=SWEEP.plans,
)
