"""Carries out a search in a folder, and continues it with the same trials after being killed.

    search.json      what is searched, and at the end what came of it
    SECRET-noise-key-do-not-share.json
                     while it goes on, the key that number and trials follow from
    trials/          run directories of the trials, while it goes on: secret
    winner/          at the end, the best trial: its network, configuration and metrics, and the claim of the search

The key is on the disk before the first trial; a trial that was begun is resumed as any run is, bit by bit. A trial whose
numbers are no longer finite is an outcome like others, worse than all. At the end the best is moved, gets the claim, and
everything else is deleted.

**Privacy:** how many trials there are, how far they are and how they scored is neither shown nor kept. Among equal scores
the first trial wins, which is a trial like any other with that score.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from sordino.accounting import Budget
from sordino.app.runs import atomic_files
from sordino.app.runs.directory import CONFIG, FINISHED, Row, Run
from sordino.app.runs.evaluate import mark_correct_records
from sordino.app.runs.fit import History, RunFailed, carry_out_run, resume
from sordino.app.runs.job import assemble_job
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.run_data import Say
from sordino.app.runs.search import Search, score_statistic
from sordino.app.runs.settings import read_config
from sordino.app.runs.training_loop import TrainingNotFinite
from sordino.events import canonical
from sordino.ledger.claims import OTHERS, Claim, Guarantee, NoGuarantee
from sordino.ledger.ledger import Ledger
from sordino.noise_key import NAME, erase_secret, read_secret, write_secret
from sordino.rng.streams import Rng
from sordino.statistics.statistic import ask

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
    """Carries out a search, or continues one if the folder holds the same; enters its cost in a budget when it begins."""
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
    recipe = read_config(folder / WINNER / CONFIG).to_settings().recipe
    chosen = {name: getattr(recipe, name) for name in planned_search.grid}
    return SearchResult(folder, planned_search.claim(**outcome), True, chosen, Run(folder / WINNER).read_rows()[-1])


def _read_search_file(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / SEARCH).read_text("utf-8")))


def _begin_or_continue(planned_search: Search, folder: Path, budget: Path | None) -> Rng | None:
    """Returns the random stream of the search, saved before anything is drawn from it; None if the search is over."""
    # An earlier process began this search: continue with its key, so that number and trials are the same.
    if (folder / SEARCH).exists():
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
    atomic_files.write_file(
        folder / SEARCH,
        json.dumps({"search": planned_search.table(), "outcome": None, **further_fields}, indent=1) + "\n",
    )


def _run_trials(planned_search: Search, folder: Path, rng: Rng) -> bool:
    """Runs all trials and moves the best one to its place; returns False if a trial was asked to stop."""
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
    """Trains and scores one trial, or continues it; returns None if it was asked to stop."""
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
    """Returns the score of a trial, larger being better; None is worse than all."""
    if planned_search.score_noise is not None:
        job = assemble_job(read_config(history.run / CONFIG).to_settings(), lambda _: None)
        rows = mark_correct_records(history.model, job)[:, None]
        return float(
            ask(score_statistic(planned_search.score_noise), rows, ledger=Ledger(), expected_batch=1.0, rng=rng)
        )
    test_score = history.test_accuracy
    if test_score is None:
        test_score = None if history.test_loss is None else -history.test_loss
    return test_score if test_score is not None and math.isfinite(test_score) else None


def _release_winner(planned_search: Search, folder: Path) -> None:
    """Gives the winner the claim of the search and deletes everything else; it can safely be repeated."""
    # The winner's checkpoints would let the trial be continued, so they are deleted.
    winner_folder, outcome = folder / WINNER, None
    if winner_folder.exists():
        shutil.rmtree(
            Run(winner_folder).checkpoints, ignore_errors=True
        )  # they hold the noise's key, and could be gone on with
        if (winner_folder / OUTCOME).exists():
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
