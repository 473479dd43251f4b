"""The clip bound swept on MNIST: both methods, final accuracy.

source     000, "MNIST: Clipping Threshold R", lines 350–357
setting    R ∈ (0.03, 0.15, 0.5, 1.5, 3.0), the rest as in the baseline
reduced    see lab/sordino_lab/slides.py
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Experiment, Finding, Outcome
from sordino_lab.slides import INSIDE, MNIST, MNIST_MIDDLE, OUTSIDE, mnist
from sordino_lab.sweep import Grid, Sweep
from sordino_lab.training_curves import mean
from sordino_lab.workbench import Workbench


def values(bench: Workbench, way: str) -> Sequence[float]:
    """The source's bounds."""
    return bench.pick((0.03,), (0.03, 0.5, 3.0), (0.03, 0.15, 0.5, 1.5, 3.0), (0.03, 0.15, 0.5, 1.5, 3.0))


def plan(bench: Workbench, way: str, value: float) -> CurvePlan:
    """One run."""
    return mnist(bench, way, label=f"{way}, R = {value:g}", bound=value)


SWEEP = Sweep("clip bound R", values, plan, (OUTSIDE, INSIDE), "MNIST, λ = 1e-4")


def judge(bench: Workbench, grid: Grid) -> list[Finding]:
    """The source's sentences."""
    outside, inside = ([mean(one) for one in grid[way].values()] for way in (OUTSIDE, INSIDE))
    ahead = sum(i > o for i, o in zip(inside, outside, strict=True))
    return [
        Finding(
            "the performance of both deteriorates as R decreases",
            "000:354",
            bench.judged(outside[0] < outside[-1] and inside[0] < inside[-1]),
            f"{outside[0]:.1f} and {inside[0]:.1f} % at the smallest R, {outside[-1]:.1f} and {inside[-1]:.1f} % at "
            "the largest",
        ),
        Finding(
            "among all R our method performs better than DP-SGD",
            "000:354",
            bench.judged(ahead == len(inside)),
            f"L2 inside is ahead at {ahead} of {len(inside)} bounds, by "
            f"{max(i - o for i, o in zip(inside, outside, strict=True)):+.2f} points at most",
        ),
    ]


def run(bench: Workbench) -> Outcome:
    """Final accuracy against clip bound R."""
    return SWEEP.outcome(bench, judge)


EXPERIMENT = Experiment(
    id="wd-mnist-clip",
    source="000",
    figure="MNIST: Clipping Threshold R",
    lines="350–357",
    title="The clip bound on MNIST",
    shows="both fall as R falls, and at λ = 1e-4 they are the same within the spread",
    setting="R ∈ (0.03, 0.15, 0.5, 1.5, 3.0), the rest as in the baseline",
    reduced=MNIST,
    middle=MNIST_MIDDLE,
    nouns=("L2", "Flat"),
    seconds=60,
    run=run,
    plans=SWEEP.plans,
)
