"""Query, sampler and gradients of a run, by its recipe's method, and the event that they make of it.

**Privacy:** the event is that of a dry run of the very query and sampler that train, so no method is charged as another.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from sordino.algorithms.dpsgd import Query
from sordino.algorithms.dry_run import dry_run
from sordino.declared import RunNumbers
from sordino.events import Event, compose
from sordino.gradients import Backend, Captured, PerformanceOptions
from sordino.runs.before import before
from sordino.runs.methods import method, plain, query_of
from sordino.runs.problem import Problem
from sordino.runs.recipe import Recipe
from sordino.runs.samplers import sampler
from sordino.sampling.sampler import Sampler


@dataclass(frozen=True, eq=False)
class RunParts:
    """What a recipe's method is built from: the problem, the number of records, and what was asked for besides."""

    recipe: Recipe
    problem: Problem
    records: int
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Of the method."""
    drawn_by: str | None = None
    """A sampler's name; None: the method's own."""
    non_private: bool = False

    def query(self, multiplier: float) -> Query:
        """What is asked of each lot."""
        if self.non_private:
            return plain()
        return query_of(method(self.recipe.method), *self._numbers(multiplier))

    def sampler(self) -> Sampler:
        """How lots are drawn."""
        own = method(self.recipe.method).sampler
        if own is None:
            return sampler(self.drawn_by or "poisson", self.recipe.rate, self.records)
        if self.drawn_by is not None:
            raise ValueError(
                f"sampler={self.drawn_by!r}: the method {self.recipe.method} draws its lots in its own way; leave it out"
            )
        return own(*self._numbers(1.0))

    def backend(self) -> Backend:
        """How per-sample gradients are computed; nothing is measured, so that a replay computes the same bits."""
        own = method(self.recipe.method).backend
        if own is None or self.non_private:
            return Captured(PerformanceOptions(measure=False))
        return own(*self._numbers(1.0))

    def event(self, multiplier: float, steps: int | None = None) -> Event:
        """All that the run releases, up to so many steps; None: the recipe's."""
        draws, steps = self.sampler(), self.recipe.steps if steps is None else steps
        expected = draws.expected(self.records)
        trained = dry_run(self.query(multiplier), draws, self.records, steps, expected, self.backend())
        return compose([*before(self.recipe), trained])

    def _numbers(self, multiplier: float) -> tuple[RunNumbers, dict[str, float]]:
        """Public numbers of the run, and the method's own parameters."""
        recipe = self.recipe
        sizes = [p.numel() for p in self.problem.model.parameters() if p.requires_grad]
        run = RunNumbers(
            bound=recipe.bound,
            multiplier=multiplier,
            rate=recipe.rate,
            steps=recipe.steps,
            records=self.records,
            tensors=len(sizes),
            numbers=sum(sizes),
            learning_rate=self.problem.learning_rate,
        )
        return run, method(recipe.method).complete(run, self.parameters)
