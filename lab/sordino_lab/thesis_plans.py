"""Plans of source 001: MNIST_Net on MNIST and Conv_CIFAR_Net on CIFAR-10, by the words of the thesis, and its tables.

full      the thesis' own: 30 epochs, lots of 250 and 200, all records
middle    MNIST 20,000 records and 15 epochs; CIFAR-10 10,000 records and 10 epochs
quick     MNIST 2,500 records, 8 epochs; CIFAR-10 1,000 records, 3 epochs; ResNet-18 200 records

Every size trains the thesis' own network: a smaller one would show something else.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sordino.app.report.panels import Panel
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Figure, Finding, Outcome
from sordino_lab.training_curves import (
    PublishedPairs,
    TrainedCurve,
    compare_with_published,
    draw_learning,
    note_missing,
    note_no_guarantee,
)
from sordino_lab.verdicts import is_better, negate, require_all
from sordino_lab.workbench import Workbench

RATES = (0.01, 0.1, 1.0)
BEST_BOUNDS = {0.01: 10.0, 0.1: 9.5, 1.0: 1.0}
"""Table 4.4: the best clip bound for each learning rate on CIFAR-10."""

METHODS: Mapping[str, tuple[str, dict[str, Any]]] = {
    "DP-SGD": ("dpsgd", {}),
    "sorted": ("sorted", {"sampler": "sorted-top-k"}),
    "sorted, median": ("median", {"sampler": "sorted-top-k", "weigher": "batch-median"}),
    "sorted, minimum": ("minimum", {"sampler": "sorted-top-k", "weigher": "batch-minimum"}),
    "sorted, log": ("logarithmic", {"sampler": "sorted-top-k", "weigher": "logarithmic"}),
    "quantile-sorted, minimum": ("quantile-sorted", {"sampler": "sorted-quantile", "weigher": "batch-minimum"}),
    "quantile-sorted, median": ("quantile-sorted", {"sampler": "sorted-quantile", "weigher": "batch-median"}),
    "class-diverse": ("class-diverse", {"sampler": "sorted-class-diverse"}),
    "similar length": ("similar-length", {"sampler": "sorted-similar-length"}),
    "projected": ("projected", {"query": "projected"}),
    "threshold": ("threshold", {"sampler": "threshold"}),
    "noisy lookahead": ("noisy-lookahead", {"query": "noisy-lookahead"}),
    "optimistic lookahead": ("optimistic-lookahead", {"query": "optimistic-lookahead"}),
}
"""The methods of the thesis: the method whose colour a curve has, and the words of its recipe."""


def label_of(method: str, rate: float) -> str:
    """Returns the label of a curve, by which the tables are keyed."""
    return f"{method}, lr {rate:g}"


def plan_mnist(bench: Workbench, method: str, rate: float, bound: float, **given: Any) -> CurvePlan:
    """Returns the plan of one curve of the thesis (source 001) on MNIST."""
    colour, words = METHODS[method]
    return CurvePlan(
        label=label_of(method, rate),
        method=colour,
        recipe="thesis-mnist",
        batch=bench.pick(250, 125, 250, 250),
        records=bench.pick(None, 2_500, 20_000, None),
        epochs=bench.pick(1, 8, 15, 30),
        seeds=bench.pick(1, 2, 3, 3),
        evaluations=bench.pick(1, 4, 15, 30),
        variant=_variant_of(rate),
        given={"learning_rate": rate, "bound": bound, **words, **given},
    )


def plan_cifar(
    bench: Workbench, method: str, rate: float, bound: float, *, epochs: int = 30, **given: Any
) -> CurvePlan:
    """Returns the plan of one curve of the thesis (source 001) on CIFAR-10."""
    colour, words = METHODS[method]
    # ResNet-18 costs ten times as much as the thesis' small network.
    quick_records = 200 if given.get("model") == "resnet18" else 1_000
    return CurvePlan(
        label=label_of(method, rate),
        method=colour,
        recipe="thesis-cifar",
        batch=bench.pick(200, min(100, quick_records // 2), 200, 200),
        records=bench.pick(None, quick_records, 10_000, None),
        epochs=bench.pick(1, 0.1, 1 / 3, 1) * epochs,
        seeds=bench.pick(1, 1, 2, 3),
        evaluations=bench.pick(1, 3, 10, 30),
        variant=_variant_of(rate),
        given={"learning_rate": rate, "bound": bound, **words, **given},
    )


def _variant_of(rate: float) -> int:
    return {0.001: 3, 0.01: 0, 0.1: 1, 1.0: 2}.get(rate, 4)


def draw_by_rate(
    plans: Sequence[CurvePlan], trained: Sequence[TrainedCurve], title: str, published: PublishedPairs | None = None
) -> list[Panel]:
    """Returns a panel for each learning rate of a figure of the thesis, so that a panel has few curves: accuracies first,
    then losses. What is published of plans that are not trained is drawn all the same.
    """
    pairs_of_panels = []
    for rate in dict.fromkeys(plan.given["learning_rate"] for plan in plans):
        some = [one for one in trained if one.plan.given["learning_rate"] == rate]
        there = {one.plan.label for one in some}
        missing = [plan for plan in plans if plan.given["learning_rate"] == rate and plan.label not in there]
        # A rate of which nothing was trained has no panel, which would be an empty frame.
        if some:
            pairs_of_panels.append(draw_learning(some, f"{title}, lr {rate:g}", published, missing=missing))
    return [accuracy for accuracy, _ in pairs_of_panels] + [loss for _, loss in pairs_of_panels]


@dataclass(frozen=True)
class MethodComparison:
    """Two methods of the thesis at one learning rate, of which the first is to be better at the end."""

    better: str
    worse: str
    rate: float
    field: str = "test_accuracy"
    """test_accuracy, or test_loss, of which less is better."""
    lead: float = 0.0
    """By how much the first must be ahead; below 0, by how much it may be behind."""
    most: float | None = None
    """By how much it may be ahead; None for any lead."""
    epoch: float | None = None
    """After how many epochs they are compared; None for the end."""

    @property
    def labels(self) -> tuple[str, str]:
        """The labels of the two curves."""
        return label_of(self.better, self.rate), label_of(self.worse, self.rate)

    def judge(self, trained: Mapping[str, TrainedCurve]) -> bool | None:
        """Returns whether trained curves of the thesis compare as it says; None where chance may explain the difference,
        or where a curve is missing.
        """
        if not set(self.labels) <= set(trained):
            return None
        one, other = self._curves(trained)
        enough = is_better(one, other, self.field, by=self.lead)
        if self.most is None:
            return enough
        return require_all([enough, negate(is_better(one, other, self.field, by=self.most))])

    def describe(self, trained: Mapping[str, TrainedCurve]) -> str:
        """Returns the two numbers of a comparison of the thesis in words."""
        one, other = self._curves(trained)
        when = "" if self.epoch is None else f" after {self.epoch:g} epochs"
        if self.field == "test_loss":
            losses = (f"{each.plan.label} {each.final('test_loss')[0]:.3f}" for each in (one, other))
            return f"loss of {', of '.join(losses)}{when}"
        return f"{one.plan.label} {one.describe_final()}, {other.plan.label} {other.describe_final()}{when}"

    def _curves(self, trained: Mapping[str, TrainedCurve]) -> list[TrainedCurve]:
        """Returns the two trained curves of a comparison of the thesis, up to the epoch at which they are compared."""
        curves = [trained[label] for label in self.labels]
        return curves if self.epoch is None else [one.until(self.epoch) for one in curves]


@dataclass(frozen=True)
class Sentence:
    """What the thesis says of one of its tables, as comparisons that must all come out."""

    says: str
    line: str
    comparisons: Sequence[MethodComparison]
    exceptions: int = 0
    """How many of them may come out otherwise, where the sentence says `often` or `in nearly all cases`."""
    by_rate: bool = False
    """Whether all comparisons at one learning rate count as one, of which so many may be exceptions."""

    def judge(self, bench: Workbench, trained: Mapping[str, TrainedCurve]) -> Finding | None:
        """Returns the finding on a sentence of the thesis; None where none of its comparisons is trained."""
        there = [one for one in self.comparisons if set(one.labels) <= set(trained)]
        if not there:
            return None
        rates = dict.fromkeys(one.rate for one in self.comparisons)
        groups = [[one for one in self.comparisons if one.rate == rate] for rate in rates]
        verdicts = (
            [require_all(one.judge(trained) for one in group) for group in groups]
            if self.by_rate
            else [one.judge(trained) for one in self.comparisons]
        )
        holds = require_all(verdicts, exceptions=self.exceptions)
        return Finding(self.says, self.line, bench.judge(holds), "; ".join(one.describe(trained) for one in there))


@dataclass(frozen=True)
class ThesisTable:
    """A table of the thesis: methods over learning rates, with the published (loss, accuracy)."""

    data: str
    """mnist or cifar."""
    methods: Mapping[str, Sequence[tuple[float, float] | None]]
    """By method the published pairs in the order of the rates; None where there is none."""
    where: str
    title: str
    bound: float | Mapping[float, float] = 1.0
    """The clip bound, or one for each learning rate."""
    bounds: Mapping[str, float] = field(default_factory=dict)
    """Clip bounds of single methods, where they differ."""
    rates: tuple[float, ...] = RATES
    epochs: int = 30
    given: Mapping[str, Any] = field(default_factory=dict)
    middle_rates: tuple[float, ...] | None = None
    """Learning rates of the middle size, where it leaves some out."""
    says: Sequence[Sentence] = ()
    """What the source says of the table."""
    notes: Sequence[str] = ()

    @property
    def published(self) -> PublishedPairs:
        """Published loss and accuracy of a table of the thesis, by label."""
        return {
            label_of(method, rate): pair
            for method, row in self.methods.items()
            for rate, pair in zip(self.rates, row, strict=False)
            if pair is not None
        }

    @property
    def figure(self) -> Figure:
        """How the table is made."""
        return Figure(self.draw, self.plans)

    def plans(self, bench: Workbench) -> list[CurvePlan]:
        """Returns the plans of all curves; at the size of the tests those of one learning rate."""
        rates = bench.pick(self.rates[1:2], self.rates, self.middle_rates or self.rates, self.rates)
        return [self._plan(bench, method, rate) for rate in rates for method in self.methods]

    def _plan(self, bench: Workbench, method: str, rate: float) -> CurvePlan:
        """Returns the plan of one method at one learning rate of a table of the thesis."""
        # A bound of a single method wins over that of the table.
        bound = self.bound if isinstance(self.bound, int | float) else self.bound[rate]
        bound = self.bounds.get(method, bound)
        if self.data == "mnist":
            return plan_mnist(bench, method, rate, bound, **self.given)
        return plan_cifar(bench, method, rate, bound, epochs=self.epochs, **self.given)

    def draw(self, bench: Workbench) -> Outcome:
        """Trains what is not there of a table of the thesis, draws, compares with the published numbers and judges the
        sentences.
        """
        plans = self.plans(bench)
        # What is not trained yet is named in a note; sentences about it are left open.
        trained = {one.plan.label: one for one in bench.find_trained(plans)}
        every = list(trained.values())
        findings = [found for one in self.says if (found := one.judge(bench, trained)) is not None]
        return Outcome(
            draw_by_rate(plans, every, self.title, self.published),
            compare_with_published(every, self.published, self.where),
            findings,
            [*self.notes, *note_missing(bench, plans), *note_no_guarantee(every)],
            bench.commands(plans),
            {"diverged": {name: one.diverged for name, one in trained.items() if one.diverged}},
        )
