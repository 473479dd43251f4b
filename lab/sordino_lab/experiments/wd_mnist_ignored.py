"""The flat λ-curve of the slides: beside decay outside the clip and exact L2 inside it, a penalty that hooks ignore.

source     000, "MNIST: Weight decay λ", lines 359–384
setting    as wd-mnist-decay; a third curve adds λ/2‖θ‖² to the loss under per-sample hooks, which never see it: it
           trains as λ = 0 (measured: parameters after 20 steps identical for λ = 0 and λ = 5)
reduced    see lab/sordino_lab/slides.py
"""

from __future__ import annotations

from collections.abc import Sequence

from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Compared, Experiment, Finding, Outcome
from sordino_lab.slides import IGNORED, INSIDE, MNIST, MNIST_MIDDLE, OUTSIDE, mnist
from sordino_lab.sweep import Grid, Sweep
from sordino_lab.training_curves import mean
from sordino_lab.workbench import Workbench


def values(bench: Workbench, way: str) -> Sequence[float]:
    """The ranges of wd-mnist-decay, so that its runs are used again."""
    if way == OUTSIDE:
        return bench.pick((1e-4,), (1e-4, 1e-2, 1.0), (1e-4, 1e-3, 1e-2, 1e-1, 1.0), (1e-4, 1e-3, 1e-2, 1e-1, 1.0))
    return bench.pick(
        (1e-4,), (1e-4, 1e-2, 1e-1, 1.0, 5.0), (1e-4, 1e-2, 1e-1, 1.0, 5.0, 10.0), (1e-4, 1e-2, 1e-1, 1.0, 5.0, 10.0)
    )


def plan(bench: Workbench, way: str, value: float) -> CurvePlan:
    """One run; the ignored penalty is one run for every λ."""
    return mnist(bench, way, value, label=f"{way}, λ = {value:g}")


SWEEP = Sweep("weight decay λ", values, plan, (OUTSIDE, INSIDE, IGNORED), "MNIST, R = 3, σ = 1.3")


def judge(bench: Workbench, grid: Grid) -> list[Finding]:
    """What a flat curve is the sign of."""
    inside = {value: mean(one) for value, one in grid[INSIDE].items()}
    ignored = [mean(one) for one in grid[IGNORED].values()]
    top = max(inside)
    return [
        Finding(
            "our method's accuracy fluctuates at ~97 % for λ up to 10",
            "000:363",
            bench.judged(max(inside.values()) - inside[top] < 5),
            f"exact L2 inside the clip has {inside[top]:.1f} % at λ = {top:g}; the ignored penalty {ignored[-1]:.1f} "
            "% at every λ",
        ),
    ]


def run(bench: Workbench) -> Outcome:
    """Three curves."""
    found = SWEEP.outcome(
        bench,
        judge,
        notes=[
            "The likely reading of the source's flat curve: a penalty in the loss does not pass through the layers "
            "whose "
            "hooks make the per-sample gradients, so λ changed nothing and the spread of the curve is that of the "
            "noise."
        ],
    )
    best = mean(SWEEP.trained(bench)[IGNORED][values(bench, IGNORED)[0]])
    row = Compared("accuracy, ignored penalty, any λ", best, 97.39, "000:379", unit="%")
    return Outcome(found.panels, [row], found.findings, found.notes, found.commands, found.numbers)


EXPERIMENT = Experiment(
    id="wd-mnist-ignored",
    source="000",
    figure="MNIST: Weight Decay λ",
    lines="359–384",
    title="The flat curve: a penalty that was ignored",
    shows="the source's flat curve is what ignoring λ looks like; the exact method is not flat",
    setting="as wd-mnist-decay, with a third curve",
    reduced=MNIST,
    middle=MNIST_MIDDLE,
    nouns=("L2", "Flat"),
    seconds=80,
    run=run,
    plans=SWEEP.plans,
)
