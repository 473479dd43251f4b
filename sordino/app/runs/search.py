"""A search for hyper-parameters, priced as the best of a secret, random number of trials.

Each trial draws one value of every field of a grid, trains by the recipe and is scored; the best is released. The score is
the accuracy on the test set, which is public, or, with `score_noise`, a noisy number of training records that are
classified rightly. The number of trials is drawn from a known distribution (Papernot & Steinke 2022, arXiv:2110.03620):

    NegativeBinomial(10.0)     geometric with mean 10; shape 0 is logarithmic, lower in price, heavier in the tail
    PoissonNumber(10.0)        close to its mean, and may be none at all

A search is carried out in a folder, and one that was killed goes on there with the same trials:

    search.json      what is searched, and at the end what came of it
    SECRET-noise-key-do-not-share.json
                     while it goes on, the key that number and trials follow from
    trials/          run directories of the trials, while it goes on: secret
    winner/          at the end, the best trial: its network, configuration and metrics, and the claim of the search

The key is on the disk before the first trial; a trial that was begun is resumed as any run is, bit by bit. A trial whose
numbers are no longer finite is an outcome like others, worse than all. At the end the best is moved, gets the claim, and
everything else is deleted.

**Privacy:** a trial is one mechanism, the same for all: draw from the grid, train, score. Its event is that of the run and
of the score, the same for every value of the grid, or the search is refused. `privacy_loss/` prices the best of K
such trials. K must depend neither on the data nor on who is impatient, so it is a function of the search's key. How many
trials there are, how far they are and how they scored is neither shown nor kept. Among equal scores the first trial wins,
which is a trial like any other with that score.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Protocol

from scipy.optimize import brentq

from sordino import validate
from sordino.accounting import PLD, Budget
from sordino.app import atomic_files
from sordino.app.runs.directory import CONFIG, FINISHED, Row, Run
from sordino.app.runs.evaluate import mark_correct_records
from sordino.app.runs.fit import History, RunFailed, carry_out_run, resume
from sordino.app.runs.job import assemble_job, draft_job
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.run_data import Say, load_run_data
from sordino.app.runs.settings import Settings, read_config
from sordino.app.runs.training_loop import TrainingNotFinite
from sordino.events import Event, TuneNegativeBinomial, TunePoisson, canonical, compose, to_json
from sordino.ledger import claims
from sordino.ledger.claims import OTHERS, Claim, Guarantee, NoGuarantee
from sordino.ledger.ledger import Ledger
from sordino.lots.privacy_units import RECORD
from sordino.noise_key import NAME, erase_secret, read_secret, write_secret
from sordino.privacy_loss.stopping import expected_runs
from sordino.queries.calibrate_run import calibrate_noise
from sordino.release.noise import Gaussian
from sordino.rng.streams import Rng
from sordino.statistics.mean import Mean
from sordino.statistics.statistic import ask, dry_ask

_MOST_TRIALS = 1_000_000
"""Runs; beyond it the law has no mass that a double can hold."""


SINGLE_RUN_OPTIONS = ("budget", "baseline", "show_private", "diagnose", "non_private")
"""Options of a run that would make trials differ in cost, or show private facts of one."""


class TrialCount(Protocol):
    """The distribution of the number of runs."""

    def best_run_event(self, run: Event) -> Event:
        """Returns the event of releasing the best of a random number of runs."""
        ...

    def draw(self, rng: Rng) -> int:
        """Draws the number from a random stream."""
        ...


@dataclass(frozen=True)
class NegativeBinomial:
    """Truncated negative binomial, at least one run.

    >>> NegativeBinomial(10.0).stopping_probability
    0.1
    """

    mean: float
    shape: float = 1.0

    def __post_init__(self) -> None:
        if validate.number("mean", self.mean) <= 1:
            raise ValueError(f"runs={self.mean:g}: must be more than 1, the mean of a number that is at least 1")
        if not -1 < validate.number("shape", self.shape) < math.inf:
            raise ValueError(f"shape={self.shape:g}: must be > -1 and finite")

    @property
    def stopping_probability(self) -> float:
        """γ, the parameter that gives the mean number of trials of a hyper-parameter search."""
        if self.shape == 1:
            return 1 / self.mean
        return float(brentq(lambda gamma: expected_runs(self.shape, gamma) - self.mean, 1e-12, 1 - 1e-12, xtol=1e-15))

    def best_run_event(self, run: Event) -> Event:
        """Returns the event of releasing the best run."""
        return TuneNegativeBinomial(run, self.shape, self.stopping_probability)

    def draw(self, rng: Rng) -> int:
        """Draws the number of trials of a hyper-parameter search by inverting the distribution function."""
        # The mass of one trial; that of the next follows from it by a ratio.
        gamma, eta = self.stopping_probability, self.shape
        first = (
            (1 - gamma) / math.log(1 / gamma) if eta == 0 else (1 - gamma) * eta / math.expm1(-eta * math.log(gamma))
        )
        return _invert_distribution(1, first, lambda k: (1 - gamma) * (k + eta) / (k + 1), rng)


@dataclass(frozen=True)
class PoissonNumber:
    """A Poisson number of runs; where it is 0, nothing is trained and nothing is released."""

    mean: float

    def __post_init__(self) -> None:
        validate.positive("runs", self.mean)

    def best_run_event(self, run: Event) -> Event:
        """Returns the event of releasing the best run."""
        return TunePoisson(run, self.mean)

    def draw(self, rng: Rng) -> int:
        """Draws the number by inverting the distribution function."""
        return _invert_distribution(0, math.exp(-self.mean), lambda k: self.mean / (k + 1), rng)


def _invert_distribution(k: int, mass: float, ratio: Callable[[int], float], rng: Rng) -> int:
    """Returns the first number of trials of a hyper-parameter search, from k on, whose distribution function exceeds a
    uniform value, where mass(k + 1) = mass(k) · ratio(k).
    """
    # Walk up from the smallest number. It stops at the last one, or where a double has no mass left.
    u, total = float(rng.uniform(1)[0]), mass
    while total < u and k < _MOST_TRIALS and mass > 0:
        mass *= ratio(k)
        k += 1
        total += mass
    return k


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
        """The event of releasing the best trial of the hyper-parameter search."""
        # A noisy score reads the training records, so it is part of what a trial costs.
        score = [] if self.score_noise is None else [dry_ask(score_statistic(self.score_noise))]
        return self.number.best_run_event(canonical(compose([self.run, *score])))

    def table(self) -> dict[str, Any]:
        """Returns the search for hyper-parameters as JSON; equal searches have equal tables."""
        # Through JSON and back, so that a search read from a file compares equal to one that was planned.
        search_fields = {
            "settings": self.settings.table(),
            "grid": {name: list(values) for name, values in self.grid.items()},
            "number": repr(self.number),
            "score_noise": self.score_noise,
            "event": to_json(self.event),
        }
        return dict(json.loads(json.dumps(search_fields)))

    def draw_settings(self, rng: Rng, number: int) -> Settings:
        """Draws the settings of one trial of the hyper-parameter search: one value for every field of the grid,
        uniformly.
        """
        # Each trial has a stream of its own, so a search that goes on draws the same trials.
        stream = rng.child("trial", number)
        chosen = {name: values[int(stream.integers(1, len(values))[0])] for name, values in self.grid.items()}
        options = self.settings.options
        seed = None if options.seed is None else options.seed + 1 + number
        return replace(self.settings, recipe=self.settings.recipe.but(**chosen), options=replace(options, seed=seed))

    def claim(
        self, not_covered: Sequence[str] = (), rests_on: Sequence[str] = (), reasons: Sequence[str] = ()
    ) -> Claim:
        """Returns the claim of the whole hyper-parameter search, with what the trials' own claims list.

        If there are `reasons` why there is no guarantee, the claim is a `NoGuarantee` with the first of them.
        """
        if reasons:
            return NoGuarantee(reasons[0])
        recipe = self.settings.recipe
        # A test set that chooses the winner is taken to be public, and the claim says so.
        public = () if self.score_noise is not None else (PUBLIC_SCORE,)
        uncovered, rests = (*not_covered, *public), (*rests_on, SECRET)
        return claims.make_claim(self.event, recipe.delta, PLD(), uncovered, rests, unit=recipe.unit or RECORD)


def score_statistic(noise: float) -> Mean:
    """Returns the noisy number of correct answers as a statistic; one record moves it by at most 1."""
    return Mean(1.0, Gaussian(noise))


def plan_search(
    settings: Settings, grid: Grid, number: TrialCount, score_noise: float | None = None, say: Say = lambda _: None
) -> Search:
    """Returns a search for hyper-parameters that is ready to begin, with noise calibrated so that the whole search fits
    the recipe's ε.
    """
    recipe, options = settings.recipe, settings.options
    # Refuse what would make trials differ in cost, or show private facts of a trial.
    if any(getattr(options, name) for name in SINGLE_RUN_OPTIONS):
        raise ValueError(f"{', '.join(SINGLE_RUN_OPTIONS)} are for single runs: leave them out of a search")
    if not grid or any(not values for values in grid.values()):
        raise ValueError("grid: need at least one field with values, as in learning_rate=0.5,1,2")
    if score_noise is not None and recipe.unit is not None:
        raise ValueError(f"score_noise with unit={recipe.unit!r}: that score is bounded by record; use the test set's")
    data = load_run_data(recipe, options.records, say, settings.own)
    draft = draft_job(settings, data)
    settings, recipe = draft.settings, draft.settings.recipe
    if score_noise is not None and not draft.problem.classifies:
        raise ValueError(f"score_noise={score_noise:g}: these records have no classes; use the test set's loss")
    # The theorem prices the best of K identical mechanisms, so every value of the grid must cost the same.
    cost_at_noise_1 = draft.event(1.0)
    for name, values in grid.items():
        for value in values:
            trial = draft_job(replace(settings, recipe=recipe.but(**{name: value})), data)
            if trial.event(1.0) != cost_at_noise_1:
                raise ValueError(f"grid {name}={value}: changes what a trial costs; need the same for all trials")
    # Calibrate the noise of a trial to the ε of the whole search.
    search = Search(settings, grid, number, score_noise, cost_at_noise_1)
    sigma = recipe.noise_multiplier
    if sigma is None:
        assert recipe.epsilon is not None  # a recipe has one of the two
        say(f"calibrating the noise so that the whole search fits ε = {recipe.epsilon:g}")
        sigma = calibrate_noise(lambda s: replace(search, run=draft.event(s)).event, recipe.epsilon, recipe.delta)
        settings = replace(settings, recipe=recipe.but(noise_multiplier=sigma))
    return replace(search, settings=settings, run=canonical(draft.event(sigma)))


SEARCH, TRIALS, WINNER, OUTCOME = "search.json", "trials", "winner", "outcome.json"

_MORE = "a trial released more than the search was priced for: it was interrupted, and could not be replayed bit by bit"


@dataclass(frozen=True, eq=False)
class SearchResult:
    """The result of a search."""

    folder: Path
    claim: Claim
    finished: bool
    chosen: Mapping[str, Any]
    """The values of the grid that won; empty where it was stopped, or where chance made no trial."""
    last_row: Row | None
    """The winner's last evaluation."""


def carry_out_search(
    planned_search: Search, folder: Path, budget: Path | None = None, say: Say = lambda _: None
) -> SearchResult:
    """Carries out a search for hyper-parameters, or continues one if the folder holds the same; enters its cost in a
    budget when it begins.
    """
    # Without a stream the search is over and only its result is read.
    rng = _begin_or_continue(planned_search, folder, budget)
    if rng is not None:
        say("searching: how many trials there are and how they score stays secret; the best is released at the end")
        if not (folder / WINNER).exists() and not _run_trials(planned_search, folder, rng):
            return SearchResult(folder, planned_search.claim(), False, {}, None)
        _release_winner(planned_search, folder)
    # Only the winner is known from here on.
    outcome = _read_search_file(folder)["outcome"]
    if outcome is None:
        return SearchResult(folder, planned_search.claim(), True, {}, None)
    # What won is read off the winner's own configuration.
    recipe = read_config(folder / WINNER / CONFIG).to_settings().recipe
    chosen = {name: getattr(recipe, name) for name in planned_search.grid}
    return SearchResult(folder, planned_search.claim(**outcome), True, chosen, Run(folder / WINNER).read_rows()[-1])


def _read_search_file(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / SEARCH).read_text("utf-8")))


def _begin_or_continue(planned_search: Search, folder: Path, budget: Path | None) -> Rng | None:
    """Returns the random stream of the hyper-parameter search, saved before anything is drawn from it; None if the
    search is over.
    """
    # An earlier process began this search: continue with its key, so that number and trials are the same.
    if (folder / SEARCH).exists():
        # The same fields are required, because other trials would not be the mechanism that was priced.
        search_file = _read_search_file(folder)
        if search_file["search"] != planned_search.table():
            raise ValueError(
                f"{folder}: holds another search; give the same fields to go on with it, or another folder"
            )
        if "key" in search_file:  # of version 0.2, which kept the key here
            return None if search_file["key"] is None else Rng.replay(search_file["key"])
        if search_file["going_on"]:
            return Rng.replay(read_secret(folder)["search"])
        erase_secret(folder)  # a crash came before it was erased
        return None
    leftovers = (TRIALS, NAME, ".gitignore")  # what a crash leaves before anything is drawn
    if folder.exists() and any(path.name not in leftovers for path in folder.iterdir()):
        raise ValueError(f"{folder}: holds something already; need a new or empty folder")
    # A new search: the budget is charged and the key is on the disk before the first draw.
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / TRIALS).mkdir(exist_ok=True, mode=0o700)
    seed = planned_search.settings.options.seed
    rng = Rng.from_entropy() if seed is None else Rng.from_seed(seed)
    if budget is not None:
        Budget(budget).spend(planned_search.event, f"search {folder.name}")
    write_secret(folder, {"search": rng.state_dict()})
    _write_search_file(planned_search, folder, {"going_on": True})
    return rng


def _write_search_file(planned_search: Search, folder: Path, further_fields: Mapping[str, Any]) -> None:
    """Writes the file of a hyper-parameter search: what is searched, its outcome (None until it is over), and further
    fields.
    """
    atomic_files.write_file(
        folder / SEARCH,
        json.dumps({"search": planned_search.table(), "outcome": None, **further_fields}, indent=1) + "\n",
    )


def _run_trials(planned_search: Search, folder: Path, rng: Rng) -> bool:
    """Runs all trials of a hyper-parameter search and moves the best one to its place; returns False if a trial was
    asked to stop.
    """
    # Every outcome is on the disk before the next trial begins, so no trial is made twice.
    outcomes = []
    for number in range(planned_search.number.draw(rng.child("number"))):
        trial_folder = folder / TRIALS / f"{number:06d}"
        if not (trial_folder / OUTCOME).exists():
            outcome = _run_trial(planned_search, rng, number, trial_folder)
            if outcome is None:
                return False
            atomic_files.write_file(trial_folder / OUTCOME, json.dumps(outcome) + "\n")
        outcomes.append(json.loads((trial_folder / OUTCOME).read_text("utf-8")))
    # Equal scores go to the first trial. A void claim of any trial voids that of the search.
    if outcomes:
        best = max(range(len(outcomes)), key=lambda number: (_score_or_lowest(outcomes[number]["score"]), -number))
        reasons = sorted({reason for outcome in outcomes for reason in outcome["reasons"]})
        trial_folder = folder / TRIALS / f"{best:06d}"
        atomic_files.write_file(trial_folder / OUTCOME, json.dumps({**outcomes[best], "reasons": reasons}) + "\n")
        os.replace(trial_folder, folder / WINNER)
    return True


def _score_or_lowest(score: float | None) -> float:
    return -math.inf if score is None else score


def _run_trial(planned_search: Search, rng: Rng, number: int, trial_folder: Path) -> dict[str, Any] | None:
    """Trains and scores one trial of a hyper-parameter search, or continues it; returns None if it was asked to stop."""
    # A trial whose numbers are no longer finite is an outcome like others, worse than all.
    try:
        begun = (trial_folder / CONFIG).is_file()
        history = (
            resume(trial_folder, Silent())
            if begun
            else carry_out_run(planned_search.draw_settings(rng, number), trial_folder, Silent())
        )
    except RunFailed as error:
        if not isinstance(error.__cause__, TrainingNotFinite):
            raise
        return {"score": None, "not_covered": [], "rests_on": [], "reasons": []}
    if history.status != FINISHED:
        return None
    # A trial that released more than it was priced for voids the claim of the search.
    claim, reasons = history.claim, []
    if isinstance(claim, NoGuarantee):
        reasons = [claim.reason]
    elif canonical(claim.event) != planned_search.run:
        reasons = [_MORE]
    kept: tuple[list[str], list[str]] = ([], [])
    if isinstance(claim, Guarantee):  # that other ledgers used these records would tell how many trials there were
        kept = [name for name in claim.not_covered if not name.startswith(OTHERS)], list(claim.rests_on)
    score = _score_trial(planned_search, history, rng.child("score", number))
    return {"score": score, "not_covered": kept[0], "rests_on": kept[1], "reasons": reasons}


def _score_trial(planned_search: Search, history: History, rng: Rng) -> float | None:
    """Returns the score by which a hyper-parameter search compares a trial with others, larger being better; None is
    worse than all.
    """
    if planned_search.score_noise is not None:
        # The number of correct training records is private and is released with noise.
        job = assemble_job(read_config(history.run / CONFIG).to_settings(), lambda _: None)
        rows = mark_correct_records(history.model, job)[:, None]
        return float(
            ask(score_statistic(planned_search.score_noise), rows, ledger=Ledger(), expected_batch=1.0, rng=rng)
        )
    # On the public test set: accuracy or, of numbers, the loss with its sign turned.
    test_score = history.test_accuracy
    if test_score is None:
        test_score = None if history.test_loss is None else -history.test_loss
    return test_score if test_score is not None and math.isfinite(test_score) else None


def _release_winner(planned_search: Search, folder: Path) -> None:
    """Gives the best trial the claim of the hyper-parameter search and deletes everything else; it can safely be
    repeated.
    """
    # The winner's checkpoints would let the trial be continued, so they are deleted.
    winner_folder, outcome = folder / WINNER, None
    if winner_folder.exists():
        shutil.rmtree(
            Run(winner_folder).checkpoints, ignore_errors=True
        )  # they hold the noise's key, and could be gone on with
        if (winner_folder / OUTCOME).exists():
            # The rows of the winner get the ε of the whole search, because choosing it cost that much.
            winner_outcome = json.loads((winner_folder / OUTCOME).read_text("utf-8"))
            outcome = {name: winner_outcome[name] for name in ("not_covered", "rests_on", "reasons")}
            claim, run = planned_search.claim(**outcome), Run(winner_folder)
            epsilon = claim.epsilon if isinstance(claim, Guarantee) else None
            rows = [replace(row, epsilon=epsilon) for row in run.read_rows()]
            run.write_rows(rows)
            run.write_privacy(claim, FINISHED, rows[-1].step if rows else 0, planned_search.settings.recipe.epsilon)
    # The other trials are secret. The key goes last, because a crash before that repeats this function.
    shutil.rmtree(folder / TRIALS, ignore_errors=True)
    _write_search_file(planned_search, folder, {"going_on": False, "outcome": outcome})
    erase_secret(folder)
    if winner_folder.exists():
        (winner_folder / OUTCOME).unlink(missing_ok=True)
