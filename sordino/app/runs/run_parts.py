"""Builds sampler, query and backend of a run from its recipe's words, and their event.

**Privacy:** the event is that of a dry run of the very query and sampler that train, so no method is charged as another.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sordino.app.runs.before import preparation_events
from sordino.app.runs.method_words import PLAIN_WORDS, WORDS, assign_parameters, words_of
from sordino.app.runs.problem import Problem
from sordino.app.runs.recipe import Recipe
from sordino.clipping.flat import Flat
from sordino.events import Event, compose
from sordino.per_sample import Backend
from sordino.queries.dry_run import dry_run
from sordino.queries.noisy_sum import Query
from sordino.registry import RunNumbers
from sordino.release.noise import Gaussian
from sordino.sampling.sampler import Sampler


@dataclass(frozen=True, eq=False)
class RunParts:
    """Builds the parts of a run from its recipe, its problem, the number of records and the parameters given."""

    recipe: Recipe
    problem: Problem
    records: int
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Of the words."""
    non_private: bool = False

    def create_query(self, multiplier: float) -> Query:
        """Returns the query for each lot; a non-private run has neither bound nor noise."""
        run, parameters = self._run_numbers_and_parameters(multiplier)
        if self.non_private:
            weigher, noise = Flat(math.inf), Gaussian(0.0)
        else:
            weigher = WORDS["weigher"][self._words["weigher"]].build(run, parameters["weigher"])
            noise = WORDS["noise"][self._words["noise"]].build(multiplier)
        query: Query = WORDS["query"][self._words["query"]].build(run, parameters["query"], weigher, noise)
        return query

    def create_sampler(self) -> Sampler:
        """Returns the sampler, which draws the lots."""
        run, parameters = self._run_numbers_and_parameters(1.0)
        sampler: Sampler = WORDS["sampler"][self._words["sampler"]].build(run, parameters["sampler"])
        return sampler

    def create_backend(self) -> Backend:
        """Returns the backend, which computes per-sample gradients."""
        run, parameters = self._run_numbers_and_parameters(1.0)
        word = PLAIN_WORDS["backend"] if self.non_private else self._words["backend"]
        backend: Backend = WORDS["backend"][word].build(run, parameters["backend"])
        return backend

    def event(self, multiplier: float, steps: int | None = None) -> Event:
        """Returns the event of everything the run releases in `steps` steps; None means the recipe's number."""
        draws, steps = self.create_sampler(), self.recipe.steps if steps is None else steps
        expected = draws.expected(self.records)
        trained = dry_run(self.create_query(multiplier), draws, self.records, steps, expected, self.create_backend())
        return compose([*preparation_events(self.recipe), trained])

    @cached_property
    def _words(self) -> dict[str, str]:
        return words_of(self.recipe)

    def _run_numbers_and_parameters(self, multiplier: float) -> tuple[RunNumbers, dict[str, dict[str, float]]]:
        """Returns the public numbers of the run, and the parameters of each of its words."""
        recipe = self.recipe
        sizes = {name: p.numel() for name, p in self.problem.model.named_parameters() if p.requires_grad}
        run = RunNumbers(
            bound=recipe.bound,
            multiplier=multiplier,
            rate=recipe.rate,
            steps=recipe.steps,
            records=self.records,
            tensors=len(sizes),
            trainable_numbers=sum(sizes.values()),
            learning_rate=self.problem.learning_rate,
            names=tuple(sizes),
        )
        return run, assign_parameters(self._words, run, self.parameters)
