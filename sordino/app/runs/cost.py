"""Computes what a run will cost, and the noise or number of steps at which it fits a target ε.

    event = Gaussian(normalise) ∘ Gaussian(pca) ∘ Poisson(rate, Gaussian(σ))^steps         of a recipe's plain DP-SGD

Other methods and samplers bring the event of a dry run of their own query, which may depend on the number of records and on
the model: they are asked for with the prepared data. Calibration wants the event at some twenty noise multipliers, and a
dry run of many steps takes a while. So the event is taken at two, the numbers in it that grew in proportion are the
noise, and the search runs on that form; its answer is then checked by an event at the multiplier found.

**Privacy:** everything that touches the data is in the one event: what is released before the first step reads every
record once, without amplification. The multiplier returned was itself accounted for by a real event.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from sordino import events
from sordino.app.runs.methods import PLAIN_WORDS, assign_parameters, find_word, is_plain_dpsgd, words_of
from sordino.app.runs.preparation import preparation_events
from sordino.app.runs.prepared import Prepared
from sordino.app.runs.problem import Problem, build
from sordino.app.runs.recipe import PLAIN, Recipe
from sordino.clipping.flat import Flat
from sordino.events import Event, compose
from sordino.events.training import training_event
from sordino.per_sample import Backend
from sordino.queries.dry_run import dry_run
from sordino.queries.noisy_sum import Query
from sordino.queries.target_epsilon import calibrate_noise
from sordino.registry import PARTS, RunNumbers
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
        """Returns the query for each lot of the run whose cost is computed; a non-private run has neither bound nor
        noise.
        """
        run, parameters = self._run_numbers_and_parameters(multiplier)
        if self.non_private:
            weigher, noise = Flat(math.inf), Gaussian(0.0)
        else:
            weigher = find_word("weigher", self._words["weigher"]).build(run, parameters["weigher"])
            noise = find_word("noise", self._words["noise"]).build(multiplier)
        query: Query = find_word("query", self._words["query"]).build(run, parameters["query"], weigher, noise)
        return query

    def create_sampler(self) -> Sampler:
        """Returns the sampler that draws the lots of the run whose cost is computed."""
        run, parameters = self._run_numbers_and_parameters(1.0)
        sampler: Sampler = find_word("sampler", self._words["sampler"]).build(run, parameters["sampler"])
        return sampler

    def create_backend(self) -> Backend:
        """Returns the backend that computes per-sample gradients in the run whose cost is computed."""
        run, parameters = self._run_numbers_and_parameters(1.0)
        word = PLAIN_WORDS["backend"] if self.non_private else self._words["backend"]
        backend: Backend = find_word("backend", word).build(run, parameters["backend"])
        return backend

    def event(self, multiplier: float, steps: int | None = None) -> Event:
        """Returns the event that the run will cost: everything it releases in `steps` steps; None means the recipe's
        number.
        """
        draws, steps = self.create_sampler(), self.recipe.steps if steps is None else steps
        expected = draws.expected_size(self.records)
        trained = dry_run(self.create_query(multiplier), draws, self.records, steps, expected, self.create_backend())
        return compose([*preparation_events(self.recipe), trained])

    @cached_property
    def _words(self) -> dict[str, str]:
        return words_of(self.recipe)

    def _run_numbers_and_parameters(self, multiplier: float) -> tuple[RunNumbers, dict[str, dict[str, float]]]:
        """Returns the public numbers of the run whose cost is computed, and the parameters of each of its words."""
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


def event(
    recipe: Recipe,
    multiplier: float,
    prepared: Prepared | None = None,
    *,
    parameters: Mapping[str, float] | None = None,
) -> Event:
    """Returns the event of everything that a run releases, at this noise multiplier of its steps.

    Plain DP-SGD needs the recipe alone. What another method's steps cost may depend on the data's size and on the model:
    give it the data as `prepare` makes it. `parameters` are those of its words.

    Args:
        recipe: a run before it is run.
        multiplier: noise of its steps.
        prepared: its data, where the method needs it.
        parameters: of its words.

    Returns:
        The event.

    Privacy:
        Nothing is released: a dry run.

    Examples:
        >>> from sordino.app.runs import find
        >>> type(event(find("mnist"), 2.0)).__name__
        'Together'

    """
    return _event_by_noise(recipe, prepared, parameters)(multiplier)


def noise_multiplier(
    recipe: Recipe,
    prepared: Prepared | None = None,
    *,
    parameters: Mapping[str, float] | None = None,
) -> float:
    """Returns the recipe's own multiplier, or the smallest at which the whole run is (ε, δ)-DP by PLD.

    >>> from sordino.app.runs import find, noise_multiplier
    >>> noise_multiplier(find("mnist", epsilon=1.0)) > noise_multiplier(find("mnist", epsilon=3.0))
    True
    """
    target = recipe.privacy
    if target.noise_multiplier is not None:
        return target.noise_multiplier
    assert target.epsilon is not None  # a recipe has one of the two
    return calibrate_noise(_event_by_noise(recipe, prepared, parameters), target.epsilon, target.delta)


def _event_by_noise(
    recipe: Recipe, prepared: Prepared | None, parameters: Mapping[str, float] | None
) -> Callable[[float], Event]:
    """Returns the event that a run will cost as a function of its noise multiplier."""
    # With the data at hand, the event comes from a dry run of the method's own query and sampler.
    if prepared is not None:
        records = prepared.drawn
        return RunParts(recipe, build(recipe, prepared, seed=0), records, parameters or {}).event
    # Without data only plain DP-SGD has a known event; everything else is refused rather than guessed.
    unknown_without_data = [f"parameters={dict(parameters)!r}"] if parameters else []
    if not is_plain_dpsgd(recipe):
        given_words = {name: getattr(recipe, name) for name in ("method", *PARTS)}
        unknown_without_data += [f"{name}={word!r}" for name, word in given_words.items() if word not in (None, PLAIN)]
    if unknown_without_data:
        raise ValueError(
            f"{', '.join(unknown_without_data)}: what its steps cost depends on the number of records "
            "and on the model; give the data, as in noise_multiplier(recipe, prepare(recipe, data))"
        )
    return lambda sigma: compose(
        [*preparation_events(recipe), training_event(recipe.rate, events.Gaussian(sigma), recipe.steps)]
    )
