"""The noise swept on MNIST: both methods, final accuracy.

source     000, "Appendix: Discussion on σ, MNIST", lines 496–501
setting    σ ∈ (1.3, 2.6, 6.5, 13.0, 65.0), the rest as in the baseline
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
    """The source's multipliers."""
    return bench.pick((1.3,), (1.3, 6.5, 65.0), (1.3, 2.6, 6.5, 13.0, 65.0), (1.3, 2.6, 6.5, 13.0, 65.0))


def plan(bench: Workbench, way: str, value: float) -> CurvePlan:
    """One run."""
    return mnist(bench, way, label=f"{way}, σ = {value:g}", noise_multiplier=value)


SWEEP = Sweep("noise multiplier σ", values, plan, (OUTSIDE, INSIDE), "MNIST, λ = 1e-4")


def judge(bench: Workbench, grid: Grid) -> list[Finding]:
    """The source's sentences."""
    outside, inside = ([mean(one) for one in grid[way].values()] for way in (OUTSIDE, INSIDE))
    gap = max(abs(i - o) for i, o in zip(inside, outside, strict=True))
    return [
        Finding(
            "the performance of both methods deteriorates as σ increases",
            "000:501",
            bench.judged(outside[-1] < outside[0] and inside[-1] < inside[0]),
            f"from {outside[0]:.1f} and {inside[0]:.1f} % to {outside[-1]:.1f} and {inside[-1]:.1f} %",
        ),
        Finding(
            "almost no difference in both methods", "000:501", bench.judged(gap < 1), f"at most {gap:.2f} points apart"
        ),
    ]


def run(bench: Workbench) -> Outcome:
    """Final accuracy against noise multiplier σ."""
    return SWEEP.outcome(bench, judge)


EXPERIMENT = Experiment(
    id="wd-mnist-noise",
    source="000",
    figure="Appendix: Discussion on σ, MNIST",
    lines="496–501",
    title="The noise on MNIST",
    shows="both fall with the noise, without a difference",
    setting="σ ∈ (1.3, 2.6, 6.5, 13.0, 65.0), the rest as in the baseline",
    reduced=MNIST,
    middle=MNIST_MIDDLE,
    nouns=("L2", "Flat"),
    seconds=60,
    run=run,
    plans=SWEEP.plans,
)
