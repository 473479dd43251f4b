"""Trained curves: all seeds of a plan with their spread, drawn, compared with published numbers and judged.

`TrainedCurve` joins the seeds of a plan. The functions draw accuracy and loss against epochs, put final numbers beside the
published ones and judge sentences of the sources. A `Sweep` does all of this for one setting over several methods.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino.app.report.panels import Panel, Series
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Compared, Finding, Outcome
from sordino_lab.training_store import FinishedTraining, NotTrained
from sordino_lab.verdicts import is_better

if TYPE_CHECKING:
    from sordino_lab.workbench import Workbench

PublishedPairs = Mapping[str, tuple[float | None, float | None]]
"""Published loss and accuracy by a plan's label."""
_STAR = 7
"""The variant that is drawn as a star."""
_ASIDE = 0.05
"""By which part of a training the star of the first method stands behind its end, and each further one behind that."""
_BLOWN_UP = 50.0
"""A loss; guessing among ten classes has 2.3."""
NOISELESS_LOOKAHEAD = "noiseless lookahead"
"""Why ProjectedDPSGD has no guarantee, in the words of a legend."""
_SHORT_REASONS: Sequence[tuple[str, str]] = (
    ("ranked the records by their gradients", "lots by rank"),
    ("the lot's own gradient lengths", "bound from the lot"),
    ("second gradients where the lot's own", NOISELESS_LOOKAHEAD),
    ("noise multiplier is 0", "no noise"),
)
"""Words of a reason why there is no guarantee, and what a legend says for it."""
_REASONS_BY_SETTING: Sequence[tuple[str, str, str]] = (
    ("sampler", "sorted-", "lots by rank"),
    ("weigher", "batch-", "bound from the lot"),
    ("query", "projected", NOISELESS_LOOKAHEAD),
)
"""Field of a plan, how its value begins, and what a legend says of it: of plans that have no training to ask."""


@dataclass(frozen=True)
class TrainedCurve:
    """All seeds of a plan."""

    plan: CurvePlan
    runs: tuple[FinishedTraining, ...]

    @property
    def hollow(self) -> str:
        """Why there is no guarantee, in a few words; empty where there is one."""
        return next((shorten_reason(run.reason) for run in self.runs if run.reason), "")

    @property
    def epsilon(self) -> float | None:
        """ε, which is the same for every seed; None without a guarantee."""
        return None if self.hollow else max((run.epsilon or 0.0 for run in self.runs), default=None)

    @property
    def diverged(self) -> str:
        """How the first seed that failed ended; empty where none did."""
        return next((run.diverged for run in self.runs if run.diverged), "")

    def final(self, name: str = "test_accuracy") -> tuple[float, float]:
        """Returns mean and standard deviation over a trained curve's seeds of the last evaluation; nan where a seed
        diverged.
        """
        # Figures are in percent; a seed that diverged leaves no mean.
        factor = 100.0 if name.endswith("accuracy") else 1.0
        values = [
            factor * float(run.rows[-1][name]) if run.rows and not run.diverged else math.nan for run in self.runs
        ]
        all_finite = all(map(math.isfinite, values))
        return _mean(values), statistics.stdev(values) if len(values) > 1 and all_finite else 0.0

    def until(self, epoch: float) -> TrainedCurve:
        """Returns the trained curve up to an epoch; up to its first evaluation where that comes later."""
        runs = [
            replace(run, rows=[row for row in run.rows if row["epoch"] <= epoch] or run.rows[:1]) for run in self.runs
        ]
        return replace(self, runs=tuple(runs))

    def describe_final(self, digits: int = 1) -> str:
        """Returns the final accuracy of a trained curve in words; with one seed there is no spread to be written."""
        mean, spread = self.final()
        return f"{mean:.{digits}f} ± {spread:.{digits}f} %" if len(self.runs) > 1 else f"{mean:.{digits}f} %"

    def series(self, y: str = "test_accuracy", x: str = "epoch") -> Series:
        """Returns the mean over a trained curve's seeds against x, with the spread as a band."""
        factor = 100.0 if y.endswith("accuracy") else 1.0
        # A seed that ended early takes part as far as it went.
        length = max((len(run.rows) for run in self.runs), default=0)
        across = [[run.rows[k] for run in self.runs if k < len(run.rows)] for k in range(length)]
        values = [[factor * float(row[y]) for row in rows if row.get(y) is not None] for rows in across]
        middle = [_mean(one) for one in values]
        spread = [statistics.stdev(one) if len(one) > 1 else 0.0 for one in values]
        several = len(self.runs) > 1
        return Series(
            self.plan.label + (" (stops: not finite)" if self.diverged else ""),
            [float(rows[0][x]) for rows in across],
            middle,
            low=[m - s for m, s in zip(middle, spread, strict=True)] if several else (),
            high=[m + s for m, s in zip(middle, spread, strict=True)] if several else (),
            method=self.plan.method,
            variant=self.plan.variant,
            hollow=self.hollow,
        )

    def diagnostic(self, name: str) -> NDArray[np.float64]:
        """Returns a diagnostic of every step for every seed of a trained curve: (seeds, steps) or (seeds, steps, k).

        What was not measured is nan, and seeds that ended early cut the others to their length.
        """
        # Every evaluation holds the steps since the last one; joined they are all steps.
        rows = [[value for row in run.rows for value in (row.get(name) or [])] for run in self.runs]
        shortest = min((len(row) for row in rows), default=0)
        width = max((len(value) for row in rows for value in row if isinstance(value, list)), default=0)
        empty = [np.nan] * width if width else np.nan

        def fill_gaps(value: object) -> object:
            if isinstance(value, list):
                return [np.nan if one is None else one for one in value]
            return empty if value is None else value

        filled = [[fill_gaps(value) for value in row[:shortest]] for row in rows]
        return np.asarray(filled, dtype=float).reshape(len(rows), shortest, *([width] if width else []))


def shorten_reason(reason: str) -> str:
    """Returns a few words of why a trained curve has no guarantee, for the legend.

    >>> shorten_reason("the noise multiplier is 0: sums of private gradients were released as they are")
    'no noise'
    """
    # A legend has room for a few words; the notes have the reason in full.
    found = [short for words, short in _SHORT_REASONS if words in reason]
    return ", ".join(found) or reason.split(":")[0].split(";")[0][:60]


def expect_reason(plan: CurvePlan) -> str:
    """Returns a few words of why a curve that is not trained yet has no guarantee, for the legend; empty where it has one.

    >>> expect_reason(CurvePlan(label="s", method="sorted", recipe="thesis-mnist", given={"sampler": "sorted-top-k"}))
    'lots by rank'
    """
    return ", ".join(
        said for name, begins, said in _REASONS_BY_SETTING if str(plan.given.get(name, "")).startswith(begins)
    )


def draw_learning(
    trained: Sequence[TrainedCurve],
    title: str,
    published: PublishedPairs | None = None,
    against: str = "epoch",
    missing: Sequence[CurvePlan] = (),
) -> tuple[Panel, Panel]:
    """Returns the panels of trained curves: accuracy and loss against epochs, or against steps; published final values
    are drawn as stars in the colour of their method behind the end, also those of plans that are `missing`.
    """
    # Published values are drawn beside the curves that they should be compared with.
    accuracy, loss = (
        [
            *_draw_distinct(trained, field, against),
            *_draw_stars(trained, missing, published or {}, which, against),
        ]
        for field, which in (("test_accuracy", 1), ("test_loss", 0))
    )
    axis = f"{against}s"
    return (
        Panel(f"{title}: accuracy", axis, "test accuracy, %", accuracy),
        _draw_losses(f"{title}: loss", axis, loss),
    )


def _draw_distinct(trained: Sequence[TrainedCurve], field: str, against: str) -> list[Series]:
    """Returns one series for each trained curve, with marks and dashes of its own where two would look the same."""
    # Two curves of one colour and mark could not be told apart.
    looks = [(one.plan.method, one.plan.variant) for one in trained]
    alike = len(set(looks)) < len(looks)
    return [
        replace(one.series(field, against), variant=k if alike else one.plan.variant) for k, one in enumerate(trained)
    ]


def _draw_stars(
    trained: Sequence[TrainedCurve],
    missing: Sequence[CurvePlan],
    published: PublishedPairs,
    which: int,
    against: str,
) -> list[Series]:
    """Returns the published final values, loss (0) or accuracy (1), as stars behind the ends of the trained curves.

    A curve that is missing has its star where it would end, so that a reader sees what the source found.
    """
    # A missing curve would end with the others.
    ends = [(one.plan, one.hollow, at[-1]) for one in trained if (at := one.series(x=against).x)]
    last = max((end for _, _, end in ends), default=0.0)
    asked = [*ends, *((plan, expect_reason(plan), last) for plan in missing if ends)]
    # A curve whose source prints no number has no star.
    found = [(*one, published.get(one[0].label, (None, None))[which]) for one in asked]
    starred = [(plan, hollow, end, value) for plan, hollow, end, value in found if value is not None]
    # Stars of one colour need one entry in the legend; of several, one for each colour, by the name of its curve.
    methods = list(dict.fromkeys(plan.method for plan, _, _, _ in starred))
    stars: list[Series] = []
    for plan, hollow, end, value in starred:
        label = f"published, {_name_method(plan)}" if len(methods) > 1 else "published, at the end"
        is_named = any(star.method == plan.method for star in stars)
        # Stars stand behind the end, where they hide no mark of ours, and those of several methods side by side, since
        # published values often lie within one star.
        at = end * (1 + _ASIDE * (1 + methods.index(plan.method)))
        not_run = " (not run yet)" if plan in missing else ""
        stars.append(mark_published("" if is_named else label + not_run, [(at, value)], plan.method, hollow))
    return stars


def _name_method(plan: CurvePlan) -> str:
    """Returns the label of a plan without its learning rate: the name of its method.

    >>> _name_method(CurvePlan(label="sorted, median, lr 0.1", method="median", recipe="thesis-mnist"))
    'sorted, median'
    """
    return plan.label.partition(", lr ")[0]


def mark_published(label: str, points: Sequence[tuple[float, float]], method: str, hollow: str = "") -> Series:
    """Returns published values, as pairs of x and y, as stars in the colour of a method; without a guarantee they are
    hollow.
    """
    x, y = [at for at, _ in points], [value for _, value in points]
    return Series(label, x, y, method=method, variant=_STAR, points=True, hollow=hollow)


def _draw_losses(title: str, axis: str, lines: Sequence[Series]) -> Panel:
    """Returns a panel of the losses of trained curves; a curve that blows up leaves the axis, so that the others can be
    seen.
    """
    # One curve that blows up would press all others to the bottom.
    seen = [y for line in lines for y in line.y if math.isfinite(y) and y > 0]
    kept = [y for y in seen if y < _BLOWN_UP]
    if not kept or len(kept) == len(seen):
        return Panel(title, axis, "test loss", lines, ylog=True)
    lines = [replace(one, low=(), high=()) if max(one.y, default=0.0) >= _BLOWN_UP else one for one in lines]
    limits = (0.7 * min(kept), 1.6 * max(kept))
    return Panel(f"{title} (what blows up is above)", axis, "test loss", lines, ylog=True, ylim=limits)


def compare_with_published(trained: Sequence[TrainedCurve], published: PublishedPairs, where: str) -> list[Compared]:
    """Returns final loss and accuracy of trained curves beside the published ones."""
    rows = []
    for one in trained:
        loss, accuracy = published.get(one.plan.label, (None, None))
        for name, value, unit, field in (("accuracy", accuracy, "%", "test_accuracy"), ("loss", loss, "", "test_loss")):
            # The sources leave some cells of their tables empty; there is nothing to compare with there.
            if value is not None:
                mean, spread = one.final(field)
                rows.append(Compared(f"{name}, {one.plan.label}", mean, value, where, spread, unit, len(one.runs)))
    return rows


def final_mean(one: TrainedCurve, field: str = "test_accuracy") -> float:
    """Returns the mean over a trained curve's seeds of the last evaluation; where a run diverged, −∞ for accuracy and ∞
    for loss.
    """
    value = one.final(field)[0]
    if math.isfinite(value):
        return value
    return math.inf if field.endswith("loss") else -math.inf


def judge_higher(
    bench: Workbench, one: TrainedCurve, other: TrainedCurve, says: str, line: str, *, less: float = 0.0, why: str = ""
) -> Finding:
    """Judges whether one trained curve ends above another in accuracy, or at most `less` points below it.

    There is no verdict where chance may explain the difference, whichever way it points; see `verdicts.is_better`.
    """
    holds = bench.judge(is_better(one, other, by=-less))
    because = f"{one.plan.label} {one.describe_final()}, {other.plan.label} {other.describe_final()}"
    return Finding(says, line, holds, f"{because}{'; ' + why if why else ''}")


def note_missing(bench: Workbench, plans: Sequence[CurvePlan]) -> list[str]:
    """Returns a note that names the curves which a workbench that does not train lacks; nothing if it has all."""
    missing = bench.missing(plans)
    return [f"Not run at the source's size yet: {'; '.join(missing)}."] if missing else []


def note_no_guarantee(trained: Sequence[TrainedCurve]) -> list[str]:
    """Returns notes that say in full why some of the trained curves are hollow, that is, have no guarantee."""
    # Each reason once, with one curve that has it.
    reasons = {run.reason: one.plan.label for one in trained for run in one.runs if run.reason}
    return [f"No guarantee for {label} and those like it: {reason}." for reason, label in reasons.items()]


def draw_curves(
    bench: Workbench,
    plans: Sequence[CurvePlan],
    title: str,
    judge: Callable[[list[TrainedCurve]], Sequence[Finding]] | None = None,
    *,
    notes: Sequence[str] = (),
) -> Outcome:
    """Trains some plans and returns the figure of their curves: accuracy and loss against epochs, judged where the source
    claims something of them, with notes and commands.
    """
    # The source's sentences are judged on the curves that are drawn, and on nothing else.
    trained = bench.train(plans)
    return Outcome(
        draw_learning(trained, title),
        findings=judge(trained) if judge is not None else (),
        notes=[*notes, *note_no_guarantee(trained)],
        commands=bench.commands(plans),
    )


Grid = dict[str, dict[float, TrainedCurve]]
"""Trained plans by method and by value."""
Judge = Callable[["Workbench", Grid], Sequence[Finding]]


def draw_swept(
    trained: Mapping[float, TrainedCurve],
    label: str,
    *,
    variant: int = 0,
    points: bool = False,
    field: str = "test_accuracy",
) -> Series:
    """Returns the final accuracy, or loss, of trained curves against a setting that was swept; with `points`, marks
    without a line between them.
    """
    # The last evaluation of every value that was swept.
    ends = {x: one.final(field) for x, one in trained.items()}
    first = next(iter(trained.values()))
    several = any(len(one.runs) > 1 for one in trained.values())
    return Series(
        label,
        list(ends),
        [mean for mean, _ in ends.values()],
        low=[mean - spread for mean, spread in ends.values()] if several else (),
        high=[mean + spread for mean, spread in ends.values()] if several else (),
        method=first.plan.method,
        variant=variant,
        points=points,
        hollow=first.hollow,
    )


@dataclass(frozen=True)
class Sweep:
    """A setting, its values, and a plan for each method at each value."""

    name: str
    """The label of the axis, with its unit."""
    values: Callable[[Workbench, str], Sequence[float]]
    """Returns the values for a method."""
    plan: Callable[[Workbench, str, float], CurvePlan]
    methods: tuple[str, ...]
    title: str

    def _values_at(self, bench: Workbench, method: str) -> Sequence[float]:
        """Returns the values for a method; at the size of the tests the first one only."""
        return self.values(bench, method)[: 1 if bench.is_tiny else None]

    def plans(self, bench: Workbench) -> list[CurvePlan]:
        """Returns a plan for each method at each value."""
        return [self.plan(bench, method, value) for method in self.methods for value in self._values_at(bench, method)]

    def train(self, bench: Workbench) -> Grid:
        """Returns the trained curves of a sweep, by method and value; raises NotTrained where a method has nothing."""
        # A method may lack some values, but a method without any leaves nothing to compare.
        grid: Grid = {}
        for method in self.methods:
            found = {v: bench.find_trained([self.plan(bench, method, v)]) for v in self._values_at(bench, method)}
            grid[method] = {v: one for v, several in found.items() for one in several}
        missing = [method for method, row in grid.items() if not row]
        if missing:
            raise NotTrained(f"nothing trained at the size {bench.size.value} of: {', '.join(missing)}")
        return grid

    def is_complete(self, bench: Workbench, method: str, row: Mapping[float, TrainedCurve]) -> bool:
        """Returns whether every value of the sweep was trained for a method; the best of some says nothing of all."""
        return all(value in row for value in self._values_at(bench, method))

    def outcome(
        self,
        bench: Workbench,
        judge: Judge | None = None,
        *,
        notes: Sequence[str] = (),
        published: PublishedPairs | None = None,
        where: str = "",
        with_loss: bool = False,
    ) -> Outcome:
        """Trains the curves of a sweep that are not there and returns the figure: final accuracy against the setting,
        compared and judged; `with_loss` adds a panel of the final losses.
        """
        grid = self.train(bench)
        every = [one for row in grid.values() for one in row.values()]
        # Where values are missing, a line between the others would say something of them.
        gaps = bool(bench.missing(self.plans(bench)))
        lines = [draw_swept(row, method, variant=k, points=gaps) for k, (method, row) in enumerate(grid.items())]
        lines += self._draw_published(bench, published or {})
        panels = [Panel(self.title, self.name, "test accuracy, %", lines, xlog=True)]
        if with_loss:
            losses = [
                draw_swept(row, method, variant=k, points=gaps, field="test_loss")
                for k, (method, row) in enumerate(grid.items())
            ]
            panels.append(Panel(f"{self.title}: loss", self.name, "test loss", losses, xlog=True))
        return Outcome(
            panels,
            compare_with_published(every, published or {}, where),
            judge(bench, grid) if judge is not None else (),
            [*notes, *note_missing(bench, self.plans(bench)), *note_no_guarantee(every)],
            bench.commands(self.plans(bench)),
            {
                method: {f"{v:g}": one.final()[0] if not one.diverged else None for v, one in row.items()}
                for method, row in grid.items()
            },
        )

    def _draw_published(self, bench: Workbench, published: PublishedPairs) -> list[Series]:
        """Returns the published accuracies of all values of a sweep as stars, in the colours of the trained curves of
        their methods.
        """
        stars: list[Series] = []
        for method in self.methods:
            plans = {value: self.plan(bench, method, value) for value in self._values_at(bench, method)}
            found = {value: published.get(plan.label, (None, None))[1] for value, plan in plans.items()}
            points = [(value, accuracy) for value, accuracy in found.items() if accuracy is not None]
            # Each method has an entry in the legend, because its stars have a colour of their own.
            if points:
                stars.append(mark_published(f"published, {method}", points, next(iter(plans.values())).method))
        return stars


def _mean(values: Sequence[float]) -> float:
    return statistics.fmean(values) if values else math.nan
