"""What figures of training have in common: accuracy and loss against epochs, final numbers beside the published ones."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from sordino.app.report.panels import Panel, Series
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Compared, Finding
from sordino_lab.trained import TrainedCurve
from sordino_lab.workbench import Workbench

Pairs = Mapping[str, tuple[float | None, float | None]]
"""Published loss and accuracy by a plan's label."""
_ONE_TEST = 0.5
"""Points of accuracy: the standard deviation of the difference of two accuracies of 85 % on 10,000 images."""
_STAR = 7
"""The variant that is drawn as a star."""
_BLOWN_UP = 50.0
"""A loss; guessing among ten classes has 2.3."""


def learning(trained: Sequence[TrainedCurve], title: str, published: Pairs | None = None) -> list[Panel]:
    """Returns accuracy and loss against epochs; published final values are drawn as stars in the colour of their method."""
    accuracy = [*_told_apart(trained, "test_accuracy"), *_stars(trained, published or {}, 1)]
    loss = [*_told_apart(trained, "test_loss"), *_stars(trained, published or {}, 0)]
    return [
        Panel(f"{title}: accuracy", "epochs", "test accuracy, %", accuracy),
        _losses(f"{title}: loss", loss),
    ]


def _told_apart(trained: Sequence[TrainedCurve], field: str) -> list[Series]:
    """Returns one series for each training, with marks and dashes of its own where two would look the same."""
    looks = [(one.plan.method, one.plan.variant) for one in trained]
    alike = len(set(looks)) < len(looks)
    return [replace(one.series(field), variant=k if alike else one.plan.variant) for k, one in enumerate(trained)]


def _stars(trained: Sequence[TrainedCurve], published: Pairs, which: int) -> list[Series]:
    """Returns the published final values, loss (0) or accuracy (1), at the last epoch of their curves."""
    stars: list[Series] = []
    for one in trained:
        value = published.get(one.plan.label, (None, None))[which]
        at = one.series().x
        if value is not None and at:
            label = "" if stars else "published, at the end"
            stars.append(Series(label, at[-1:], [value], method=one.plan.method, variant=_STAR, points=True))
    return stars


def _losses(title: str, lines: Sequence[Series]) -> Panel:
    """A curve that blows up leaves the axis, so that the others can be seen."""
    seen = [y for line in lines for y in line.y if math.isfinite(y) and y > 0]
    kept = [y for y in seen if y < _BLOWN_UP]
    if not kept or len(kept) == len(seen):
        return Panel(title, "epochs", "test loss", lines, ylog=True)
    lines = [replace(one, low=(), high=()) if max(one.y, default=0.0) >= _BLOWN_UP else one for one in lines]
    limits = (0.7 * min(kept), 1.6 * max(kept))
    return Panel(f"{title} (what blows up is above)", "epochs", "test loss", lines, ylog=True, ylim=limits)


def against(trained: Sequence[TrainedCurve], published: Pairs, where: str) -> list[Compared]:
    """Final loss and accuracy beside the published ones."""
    rows = []
    for one in trained:
        loss, accuracy = published.get(one.plan.label, (None, None))
        for name, value, unit, field in (("accuracy", accuracy, "%", "test_accuracy"), ("loss", loss, "", "test_loss")):
            if value is not None:
                mean, spread = one.last(field)
                rows.append(Compared(f"{name}, {one.plan.label}", mean, value, where, spread, unit, len(one.runs)))
    return rows


def swept(
    trained: Mapping[float, TrainedCurve], label: str, *, field: str = "test_accuracy", variant: int = 0
) -> Series:
    """The last evaluation against a setting that was swept."""
    ends = {x: one.last(field) for x, one in trained.items()}
    first = next(iter(trained.values()))
    several = len(first.runs) > 1
    return Series(
        label,
        list(ends),
        [mean for mean, _ in ends.values()],
        low=[mean - spread for mean, spread in ends.values()] if several else (),
        high=[mean + spread for mean, spread in ends.values()] if several else (),
        method=first.plan.method,
        variant=variant,
        hollow=first.hollow,
    )


def mean(one: TrainedCurve, field: str = "test_accuracy") -> float:
    """The mean over seeds of the last evaluation; of a run that diverged, −∞ for accuracy and ∞ for loss."""
    value = one.last(field)[0]
    if math.isfinite(value):
        return value
    return math.inf if field.endswith("loss") else -math.inf


def higher(
    bench: Workbench, one: TrainedCurve, other: TrainedCurve, says: str, line: str, *, less: float = 0.0, why: str = ""
) -> Finding:
    """Judges whether one method is above the other in accuracy.

    There is no verdict where the spread of the seeds covers the difference, whichever way it points. One seed has no
    spread; then a difference that two tests on 10,000 images may have by chance, `_ONE_TEST`, has no verdict.
    """
    a, b = one.last(), other.last()
    several = len(one.runs) > 1 and len(other.runs) > 1
    gap, noise = a[0] - b[0], math.hypot(a[1], b[1]) if several else _ONE_TEST
    holds: bool | None = gap > -less
    if not bench.tells or not math.isfinite(gap) or abs(gap + less) <= noise:
        holds = None
    because = f"{one.plan.label} {a[0]:.1f} ± {a[1]:.1f} %, {other.plan.label} {b[0]:.1f} ± {b[1]:.1f} %"
    return Finding(says, line, holds, f"{because}{'; ' + why if why else ''}")


def not_run(bench: Workbench, plans: Sequence[CurvePlan]) -> list[str]:
    """Returns a note that names the curves which a workbench that does not train lacks; nothing if it has all."""
    missing = bench.missing(plans)
    return [f"Not run at the source's size yet: {'; '.join(missing)}."] if missing else []


def no_guarantee(trained: Sequence[TrainedCurve]) -> list[str]:
    """Why some curves are hollow, in full."""
    reasons = {run.reason: one.plan.label for one in trained for run in one.runs if run.reason}
    return [f"No guarantee for {label} and those like it: {reason}." for reason, label in reasons.items()]
