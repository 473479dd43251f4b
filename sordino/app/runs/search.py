"""A search for hyper-parameters, priced as the best of a secret, random number of trials.

Each trial draws one value of every field of a grid, trains by the recipe and is scored; the best is released. The score is
the accuracy on the test set, which is public, or, with `score_noise`, a noisy number of training records that are
classified rightly. `search_folder` carries it out.

**Privacy:** a trial is one mechanism, the same for all: draw from the grid, train, score. Its event is that of the run and
of the score, the same for every value of the grid, or the search is refused. `accounting.losses.selection` prices the best
of K such trials, K drawn in secret.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from sordino.accounting import PLD
from sordino.app.runs.number_of_runs import TrialCount
from sordino.app.runs.problem import build
from sordino.app.runs.recipe import Recipe
from sordino.app.runs.run_data import RunData, Say, load_run_data
from sordino.app.runs.run_parts import RunParts
from sordino.app.runs.settings import Settings
from sordino.events import Event, canonical, compose, to_json
from sordino.ledger import claims
from sordino.ledger.claims import Claim, NoGuarantee
from sordino.lots.privacy_units import RECORD
from sordino.queries.target_epsilon import calibrate_noise
from sordino.release.noise import Gaussian
from sordino.rng.streams import Rng
from sordino.statistics.mean import Mean
from sordino.statistics.statistic import dry_ask

SECRET = "the number of trials and all trials but the best are secret, and deleted"
PUBLIC_SCORE = "the test set by which the best trial was chosen, declared public"

Grid = Mapping[str, Sequence[Any]]


@dataclass(frozen=True)
class Search:
    """What is searched: a recipe with its noise, values to try, the number of trials, and their score."""

    settings: Settings
    grid: Grid
    number: TrialCount
    score_noise: float | None
    run: Event
    """What one trial releases in training."""

    @property
    def event(self) -> Event:
        """The event of releasing the best trial."""
        score = [] if self.score_noise is None else [dry_ask(score_statistic(self.score_noise))]
        return self.number.best_run_event(canonical(compose([self.run, *score])))

    def table(self) -> dict[str, Any]:
        """Returns the search as JSON; equal searches have equal tables."""
        search_fields = {
            "settings": self.settings.table(),
            "grid": {name: list(values) for name, values in self.grid.items()},
            "number": repr(self.number),
            "score_noise": self.score_noise,
            "event": to_json(self.event),
        }
        return dict(json.loads(json.dumps(search_fields)))

    def draw_settings(self, rng: Rng, number: int) -> Settings:
        """Draws the settings of a trial: one value for every field of the grid, uniformly."""
        stream = rng.child("trial", number)
        chosen = {name: values[int(stream.integers(1, len(values))[0])] for name, values in self.grid.items()}
        options = self.settings.options
        seed = None if options.seed is None else options.seed + 1 + number
        return replace(self.settings, recipe=self.settings.recipe.but(**chosen), options=replace(options, seed=seed))

    def claim(
        self, not_covered: Sequence[str] = (), rests_on: Sequence[str] = (), reasons: Sequence[str] = ()
    ) -> Claim:
        """Returns the claim of the whole search, with what the trials' own claims list.

        If there are `reasons` why there is no guarantee, the claim is a `NoGuarantee` with the first of them.
        """
        if reasons:
            return NoGuarantee(reasons[0])
        recipe = self.settings.recipe
        public = () if self.score_noise is not None else (PUBLIC_SCORE,)
        uncovered, rests = (*not_covered, *public), (*rests_on, SECRET)
        return claims.make_claim(self.event, recipe.delta, PLD(), uncovered, rests, unit=recipe.unit or RECORD)


def score_statistic(noise: float) -> Mean:
    """Returns the noisy number of correct answers as a statistic; one record moves it by at most 1."""
    return Mean(1.0, Gaussian(noise))


def plan_search(
    settings: Settings, grid: Grid, number: TrialCount, score_noise: float | None = None, say: Say = lambda _: None
) -> Search:
    """Returns a search that is ready to begin, with noise calibrated so that the whole search fits the recipe's ε."""
    recipe, options = settings.recipe, settings.options
    # Refuse what would make trials differ in cost, or show private facts of a trial.
    if options.budget is not None or options.show_private or options.diagnose or options.non_private:
        raise ValueError(
            "budget, show_private, diagnose and non_private are for single runs: leave them out of a search"
        )
    if not grid or any(not values for values in grid.values()):
        raise ValueError("grid: need at least one field with values, as in learning_rate=0.5,1,2")
    if score_noise is not None and recipe.unit is not None:
        raise ValueError(f"score_noise with unit={recipe.unit!r}: that score is bounded by record; use the test set's")
    data = load_run_data(recipe, options.records, say)
    parts = _parts_of_trial(settings, recipe, data)
    if score_noise is not None and not parts.problem.classifies:
        raise ValueError(f"score_noise={score_noise:g}: these records have no classes; use the test set's loss")
    # The theorem prices the best of K identical mechanisms, so every value of the grid must cost the same.
    for name, values in grid.items():
        for value in values:
            if _parts_of_trial(settings, recipe.but(**{name: value}), data).event(1.0) != parts.event(1.0):
                raise ValueError(f"grid {name}={value}: changes what a trial costs; need the same for all trials")
    # Calibrate the noise of a trial to the ε of the whole search.
    search = Search(settings, grid, number, score_noise, parts.event(1.0))
    sigma = recipe.noise_multiplier
    if sigma is None:
        assert recipe.epsilon is not None  # a recipe has one of the two
        say(f"calibrating the noise so that the whole search fits ε = {recipe.epsilon:g}")
        sigma = calibrate_noise(lambda s: replace(search, run=parts.event(s)).event, recipe.epsilon, recipe.delta)
        settings = replace(settings, recipe=recipe.but(noise_multiplier=sigma))
    return replace(search, settings=settings, run=canonical(parts.event(sigma)))


def _parts_of_trial(settings: Settings, recipe: Recipe, data: RunData) -> RunParts:
    """Returns the parts of a trial by its recipe."""
    problem = build(recipe, data.prepared, settings.options.init_seed)
    return RunParts(recipe, problem, data.prepared.drawn, settings.parameters)
