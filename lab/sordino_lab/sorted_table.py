"""A table of the thesis: DP-SGD beside sorted methods over learning rates, trained, drawn, compared and judged."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sordino.app.report.panels import Panel
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Finding, Outcome
from sordino_lab.thesis import RATES, cifar, label, mnist, pairs
from sordino_lab.trained import TrainedCurve
from sordino_lab.training_curves import Pairs, against, higher, learning, no_guarantee, not_run
from sordino_lab.workbench import Workbench


@dataclass(frozen=True)
class SortedTable:
    """Ways to train over learning rates, each with its bounds and the published (loss, accuracy)."""

    data: str
    """mnist or cifar."""
    ways: Mapping[str, Sequence[tuple[float, float] | None]]
    """By the name of a way: published pairs in the order of the rates; None where there is none."""
    where: str
    bound: float | Mapping[float, float] = 1.0
    bounds: Mapping[str, float] | None = None
    """By way, where they differ."""
    rates: tuple[float, ...] = RATES
    epochs: int = 30
    given: Mapping[str, Any] | None = None
    between: tuple[float, ...] | None = None
    """Learning rates of the middle size, where it leaves some out."""
    title: str = ""

    def plans(self, bench: Workbench) -> list[CurvePlan]:
        """All curves; at the size of the tests one rate only."""
        rates = bench.pick(self.rates[1:2], self.rates, self.between or self.rates, self.rates)
        return [self._plan(bench, way, rate) for rate in rates for way in self.ways]

    def _plan(self, bench: Workbench, way: str, rate: float) -> CurvePlan:
        bound = self.bound if isinstance(self.bound, int | float) else self.bound[rate]
        bound = (self.bounds or {}).get(way, bound)
        given = dict(self.given or {})
        if self.data == "mnist":
            return mnist(bench, way, rate, bound, **given)
        return cifar(bench, way, rate, bound, epochs=self.epochs, **given)

    def trained(self, bench: Workbench) -> dict[str, TrainedCurve]:
        """Returns what is trained, by label; a workbench that does not train may lack some."""
        return {one.plan.label: one for one in bench.available(self.plans(bench))}

    def _panels(self, trained: Sequence[TrainedCurve], published: Pairs) -> list[Panel]:
        """Returns a panel for each learning rate, so that a panel has few curves: accuracies first, then losses."""
        pairs_of_panels = []
        for rate in self.rates:
            some = [one for one in trained if one.plan.given["learning_rate"] == rate]
            if some:
                pairs_of_panels.append(learning(some, f"{self.title or self.data}, lr {rate:g}", published))
        return [accuracy for accuracy, _ in pairs_of_panels] + [loss for _, loss in pairs_of_panels]

    def outcome(
        self,
        bench: Workbench,
        says: Sequence[tuple[str, str, float, str, str]] = (),
        notes: Sequence[str] = (),
        findings: Sequence[Finding] = (),
    ) -> Outcome:
        """The figure; `says` are (way above, way below, learning rate, sentence, line)."""
        found = self.trained(bench)
        every = list(found.values())
        published = pairs(self.ways, self.rates)
        judged = [
            higher(bench, found[label(one, rate)], found[label(other, rate)], sentence, line)
            for one, other, rate, sentence, line in says
            if label(one, rate) in found and label(other, rate) in found
        ]
        return Outcome(
            self._panels(every, published),
            against(every, published, self.where),
            [*judged, *findings],
            [*notes, *not_run(bench, self.plans(bench)), *no_guarantee(every)],
            bench.commands(self.plans(bench)),
            {"diverged": {name: one.diverged for name, one in found.items() if one.diverged}},
        )
