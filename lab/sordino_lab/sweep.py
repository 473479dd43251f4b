"""One setting swept over several methods: final accuracy against it, and the curves on the way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from sordino.app.report.panels import Panel
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import Compared, Finding, Outcome
from sordino_lab.trained import TrainedCurve
from sordino_lab.training_curves import against, no_guarantee, not_run, swept
from sordino_lab.workbench import NotTrained, Workbench

Grid = dict[str, dict[float, TrainedCurve]]
"""Trained plans by method and by value."""
Judge = Callable[[Workbench, Grid], Sequence[Finding]]


@dataclass(frozen=True)
class Sweep:
    """A setting, its values, and a plan for each method at each value."""

    name: str
    """Of the axis, with its unit."""
    values: Callable[[Workbench, str], Sequence[float]]
    """For a method."""
    plan: Callable[[Workbench, str, float], CurvePlan]
    methods: tuple[str, ...]
    title: str
    log: bool = True

    def plans(self, bench: Workbench) -> list[CurvePlan]:
        """All of them; at the size of the tests the first value only."""
        some = slice(None) if bench.tells else slice(1)
        return [
            self.plan(bench, method, value) for method in self.methods for value in self.values(bench, method)[some]
        ]

    def trained(self, bench: Workbench) -> Grid:
        """Returns what is trained, by method and value; raises NotTrained where a method has nothing."""
        some = slice(None) if bench.tells else slice(1)
        grid: Grid = {}
        for method in self.methods:
            values = self.values(bench, method)[some]
            found = {v: bench.available([self.plan(bench, method, v)]) for v in values}
            grid[method] = {v: one for v, several in found.items() for one in several}
        missing = [method for method, row in grid.items() if not row]
        if missing:
            raise NotTrained(f"nothing trained at the size {bench.size.value} of: {', '.join(missing)}")
        return grid

    def panel(self, grid: Grid) -> Panel:
        """Final accuracy against the setting."""
        lines = [swept(row, method, variant=k) for k, (method, row) in enumerate(grid.items())]
        return Panel(self.title, self.name, "test accuracy, %", lines, xlog=self.log)

    def outcome(
        self,
        bench: Workbench,
        judge: Judge | None = None,
        *,
        notes: Sequence[str] = (),
        more: Sequence[Panel] = (),
        published: Mapping[str, tuple[float | None, float | None]] | None = None,
        where: str = "",
        compared: Sequence[Compared] = (),
        courses: bool = False,
    ) -> Outcome:
        """The figure; with `courses` also accuracy against epochs for every value."""
        grid = self.trained(bench)
        every = [one for row in grid.values() for one in row.values()]
        panels = [self.panel(grid), *more]
        if courses:
            for method, row in grid.items():
                panels.append(
                    Panel(f"{method}: on the way", "epochs", "test accuracy, %", [one.series() for one in row.values()])
                )
        return Outcome(
            panels,
            [*against(every, published or {}, where), *compared],
            judge(bench, grid) if judge is not None else (),
            [*notes, *not_run(bench, self.plans(bench)), *no_guarantee(every)],
            bench.commands(self.plans(bench)),
            {
                method: {f"{v:g}": one.last()[0] if not one.diverged else None for v, one in row.items()}
                for method, row in grid.items()
            },
        )
