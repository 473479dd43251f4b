"""The noise swept on CIFAR-10: both methods, final accuracy.

source     000, "Appendix: Discussion on σ, CIFAR-10", lines 503–507
setting    σ ∈ (1.5, 3.0, 7.5, 15.0), the rest as in the baseline
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
    """The source's multipliers."""
    return bench.pick((1.5,), (1.5, 7.5, 15.0), (1.5, 3.0, 7.5, 15.0), (1.5, 3.0, 7.5, 15.0))


def plan(bench: Workbench, way: str, value: float) -> CurvePlan:
    """One run."""
    return cifar(bench, way, label=f"{way}, σ = {value:g}", noise_multiplier=value)


SWEEP = Sweep("noise multiplier σ", values, plan, (OUTSIDE, INSIDE), "CIFAR-10, λ = 1e-4")


def judge(bench: Workbench, grid: Grid) -> list[Finding]:
    """The source's sentences."""
    outside, inside = ([mean(one) for one in grid[way].values()] for way in (OUTSIDE, INSIDE))
    gap = max(abs(i - o) for i, o in zip(inside, outside, strict=True))
    return [
        Finding(
            "the performance of both methods deteriorates as σ increases",
            "000:510",
            bench.judged(outside[-1] < outside[0] and inside[-1] < inside[0]),
            f"from {outside[0]:.1f} and {inside[0]:.1f} % to {outside[-1]:.1f} and {inside[-1]:.1f} %",
        ),
        Finding(
            "almost no difference in both methods", "000:510", bench.judged(gap < 1), f"at most {gap:.2f} points apart"
        ),
    ]


def run(bench: Workbench) -> Outcome:
    """Final accuracy against noise multiplier σ."""
    return SWEEP.outcome(bench, judge)


EXPERIMENT = Experiment(
    id="wd-cifar-noise",
    source="000",
    figure="Appendix: Discussion on σ, CIFAR-10",
    lines="503–507",
    title="The noise on CIFAR-10",
    shows="both fall with the noise, without a difference",
    setting="σ ∈ (1.5, 3.0, 7.5, 15.0), the rest as in the baseline",
    reduced=CIFAR,
    middle=CIFAR_MIDDLE,
    nouns=("L2", "Flat"),
    seconds=40,
    run=run,
    plans=SWEEP.plans,
)
