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
from sordino.app.runs.evaluate import correct
from sordino.app.runs.fit import Failed, History, carry_out, resume
from sordino.app.runs.job import assemble
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.run_data import Say
from sordino.app.runs.search import Search, score_of
from sordino.app.runs.settings import read
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
class Found:
    """The result of a search."""

    folder: Path
    claim: Claim
    finished: bool
    chosen: Mapping[str, Any]
    """The values of the grid that won; empty where it was stopped, or where chance made no trial."""
    last: Row | None
    """The winner's last evaluation."""


def search(what: Search, folder: Path, budget: Path | None = None, say: Say = lambda _: None) -> Found:
    """Carries out a search, or continues one if the folder holds the same; enters its cost in a budget when it begins."""
    # Without a stream the search is over and only its result is read.
    rng = _begun(what, folder, budget)
    if rng is not None:
        say("searching: how many trials there are and how they score stays secret; the best is released at the end")
        if not (folder / WINNER).exists() and not _won(what, folder, rng):
            return Found(folder, what.claim(), False, {}, None)
        _finish(what, folder)
    # Only the winner is known from here on.
    held = _held(folder)["outcome"]
    if held is None:
        return Found(folder, what.claim(), True, {}, None)
    recipe = read(folder / WINNER / CONFIG).settings().recipe
    chosen = {name: getattr(recipe, name) for name in what.grid}
    return Found(folder, what.claim(**held), True, chosen, Run(folder / WINNER).rows()[-1])


def _held(folder: Path) -> dict[str, Any]:
    return dict(json.loads((folder / SEARCH).read_text("utf-8")))


def _begun(what: Search, folder: Path, budget: Path | None) -> Rng | None:
    """Returns the random stream of the search, saved before anything is drawn from it; None if the search is over."""
    # An earlier process began this search: continue with its key, so that number and trials are the same.
    if (folder / SEARCH).exists():
        held = _held(folder)
        if held["search"] != what.table():
            raise ValueError(
                f"{folder}: holds another search; give the same fields to go on with it, or another folder"
            )
        if "key" in held:  # of version 0.2, which kept the key here
            return None if held["key"] is None else Rng.replay(held["key"])
        if held["going_on"]:
            return Rng.replay(read_secret(folder)["search"])
        erase_secret(folder)  # a crash came before it was erased
        return None
    begun = (TRIALS, NAME, ".gitignore")  # what a crash leaves before anything is drawn
    if folder.exists() and any(path.name not in begun for path in folder.iterdir()):
        raise ValueError(f"{folder}: holds something already; need a new or empty folder")
    # A new search: the budget is charged and the key is on the disk before the first draw.
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    (folder / TRIALS).mkdir(exist_ok=True, mode=0o700)
    seed = what.settings.options.seed
    rng = Rng.from_entropy() if seed is None else Rng.from_seed(seed)
    if budget is not None:
        Budget(budget).spend(what.event, f"search {folder.name}")
    write_secret(folder, {"search": rng.state_dict()})
    _write(what, folder, {"going_on": True})
    return rng


def _write(what: Search, folder: Path, more: Mapping[str, Any]) -> None:
    atomic_files.write(folder / SEARCH, json.dumps({"search": what.table(), "outcome": None, **more}, indent=1) + "\n")


def _won(what: Search, folder: Path, rng: Rng) -> bool:
    """Runs all trials and moves the best one to its place; returns False if a trial was asked to stop."""
    # Every outcome is on the disk before the next trial begins, so no trial is made twice.
    outcomes = []
    for number in range(what.number.drawn(rng.child("number"))):
        place = folder / TRIALS / f"{number:06d}"
        if not (place / OUTCOME).exists():
            outcome = _trial(what, rng, number, place)
            if outcome is None:
                return False
            atomic_files.write(place / OUTCOME, json.dumps(outcome) + "\n")
        outcomes.append(json.loads((place / OUTCOME).read_text("utf-8")))
    # Equal scores go to the first trial. A void claim of any trial voids that of the search.
    if outcomes:
        best = max(range(len(outcomes)), key=lambda number: (_rank(outcomes[number]["score"]), -number))
        reasons = sorted({reason for outcome in outcomes for reason in outcome["reasons"]})
        place = folder / TRIALS / f"{best:06d}"
        atomic_files.write(place / OUTCOME, json.dumps({**outcomes[best], "reasons": reasons}) + "\n")
        os.replace(place, folder / WINNER)
    return True


def _rank(score: float | None) -> float:
    return -math.inf if score is None else score


def _trial(what: Search, rng: Rng, number: int, place: Path) -> dict[str, Any] | None:
    """Trains and scores one trial, or continues it; returns None if it was asked to stop."""
    # A trial whose numbers are no longer finite is an outcome like others, worse than all.
    try:
        begun = (place / CONFIG).is_file()
        history = resume(place, Silent()) if begun else carry_out(what.drawn(rng, number), place, Silent())
    except Failed as error:
        if not isinstance(error.__cause__, TrainingNotFinite):
            raise
        return {"score": None, "not_covered": [], "rests_on": [], "reasons": []}
    if history.status != FINISHED:
        return None
    # A trial that released more than it was priced for voids the claim of the search.
    said, reasons = history.claim, []
    if isinstance(said, NoGuarantee):
        reasons = [said.reason]
    elif canonical(said.event) != what.run:
        reasons = [_MORE]
    kept: tuple[list[str], list[str]] = ([], [])
    if isinstance(said, Guarantee):  # that other ledgers used these records would tell how many trials there were
        kept = [name for name in said.not_covered if not name.startswith(OTHERS)], list(said.rests_on)
    score = _score(what, history, rng.child("score", number))
    return {"score": score, "not_covered": kept[0], "rests_on": kept[1], "reasons": reasons}


def _score(what: Search, history: History, rng: Rng) -> float | None:
    """Returns the score of a trial, larger being better; None is worse than all."""
    if what.score_noise is not None:
        job = assemble(read(history.run / CONFIG).settings(), lambda _: None)
        rows = correct(history.model, job)[:, None]
        return float(ask(score_of(what.score_noise), rows, ledger=Ledger(), expected_batch=1.0, rng=rng))
    found = history.test_accuracy
    if found is None:
        found = None if history.test_loss is None else -history.test_loss
    return found if found is not None and math.isfinite(found) else None


def _finish(what: Search, folder: Path) -> None:
    """Gives the winner the claim of the search and deletes everything else; it can safely be repeated."""
    # The winner's checkpoints would let the trial be continued, so they are deleted.
    place, outcome = folder / WINNER, None
    if place.exists():
        shutil.rmtree(
            Run(place).checkpoints, ignore_errors=True
        )  # they hold the noise's key, and could be gone on with
        if (place / OUTCOME).exists():
            held = json.loads((place / OUTCOME).read_text("utf-8"))
            outcome = {name: held[name] for name in ("not_covered", "rests_on", "reasons")}
            said, run = what.claim(**outcome), Run(place)
            epsilon = said.epsilon if isinstance(said, Guarantee) else None
            rows = [replace(row, epsilon=epsilon) for row in run.rows()]
            run.write_rows(rows)
            run.write_privacy(said, FINISHED, rows[-1].step if rows else 0, what.settings.recipe.epsilon)
    # The other trials are secret. The key goes last, because a crash before that repeats this function.
    shutil.rmtree(folder / TRIALS, ignore_errors=True)
    _write(what, folder, {"going_on": False, "outcome": outcome})
    erase_secret(folder)
    if place.exists():
        (place / OUTCOME).unlink(missing_ok=True)
