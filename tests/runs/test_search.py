"""A search: the law of its number, the best and nothing else released, the claim, and what a kill changes."""

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress

import numpy as np
import pytest
import safetensors.torch
import torch

from sordino.accounting import PLD, Budget
from sordino.app.runs import search
from sordino.app.runs.fit import resume
from sordino.app.runs.search import (
    NegativeBinomial,
    PoissonNumber,
    _begin_or_continue,
    _run_trials,
    carry_out_search,
    plan_search,
)
from sordino.app.runs.settings import make_settings
from sordino.events import Gaussian, Together, TuneNegativeBinomial, TunePoisson
from sordino.rng.streams import Rng
from tests.untested import untested

SMALL = {"steps": 6, "records": 200, "evaluate_every": 6, "checkpoint_every": 2, "noise_multiplier": 2.0}
GRID = {"learning_rate": (1e-9, 0.1, 0.5)}


def small(seed=3, **more):
    return make_settings("spiral", {**SMALL, "seed": seed, **more})


def masses(number, most=400):
    """P[K = k] from the books, by their own formulas."""
    k = np.arange(most + 1)
    if isinstance(number, PoissonNumber):
        logs = k * np.log(number.mean) - number.mean - np.array([sum(np.log(range(1, n + 1))) for n in k])
        return np.exp(logs)
    eta, gamma = number.shape, number.stopping_probability
    found = np.zeros(most + 1)
    for n in range(1, most + 1):
        if eta == 0:
            found[n] = (1 - gamma) ** n / (n * np.log(1 / gamma))
        else:
            found[n] = (1 - gamma) ** n / (gamma**-eta - 1) * np.prod([(i + eta) / (i + 1) for i in range(n)])
    return found


@pytest.mark.parametrize(
    "number",
    [NegativeBinomial(4.0), NegativeBinomial(4.0, 0.0), NegativeBinomial(4.0, -0.5), PoissonNumber(3.0)],
    ids=str,
)
def test_the_number_of_trials_has_its_law(number):
    """Five deviations for each of eight cells: a false alarm in 10⁵."""
    n = 8000
    stream = Rng.from_seed(1)
    drawn = np.array([number.draw(stream) for _ in range(n)])
    law = masses(number)
    assert (law * np.arange(len(law))).sum() == pytest.approx(number.mean, rel=0.02)  # its tail is cut at 400
    for k in range(8):
        assert abs((drawn == k).mean() - law[k]) <= 5 * np.sqrt(law[k] * (1 - law[k]) / n) + 1e-12


@pytest.fixture(autouse=True, scope="module")
def what_is_tested_here():
    """The search: the standing test has tests of its own, and every lot here would be a first one."""
    with untested():
        yield


@pytest.fixture(scope="module")
def found(tmp_path_factory, what_is_tested_here):
    folder = tmp_path_factory.mktemp("search") / "out"
    what = plan_search(small(), GRID, NegativeBinomial(3.0))
    return what, carry_out_search(what, folder)


def test_the_claim_is_that_of_the_search(found):
    what, result = found
    assert result.finished
    assert isinstance(what.event, TuneNegativeBinomial)
    assert what.event.event == what.run
    assert result.claim.event == what.event
    assert result.claim.epsilon == PLD().epsilon(what.event, 1e-5)
    assert result.claim.epsilon > 1.2 * PLD().epsilon(what.run, 1e-5)
    assert "deleted" in str(result.claim)
    assert "seed" in result.claim.not_covered


def test_nothing_but_the_winner_is_left_and_nothing_tells_how_many_there_were(found):
    what, result = found
    assert sorted(path.name for path in result.folder.iterdir()) == [".gitignore", "search.json", "winner"]
    held = json.loads((result.folder / "search.json").read_text())
    assert held["going_on"] is False
    assert set(held["outcome"]) == {"not_covered", "rests_on", "reasons"}
    assert not (result.folder / "winner" / "checkpoints").exists()
    said = json.loads((result.folder / "winner" / "privacy.json").read_text())
    assert said["claim"]["epsilon"] == result.claim.epsilon
    rows = (result.folder / "winner" / "metrics.jsonl").read_text().splitlines()
    assert {json.loads(row)["epsilon"] for row in rows} == {result.claim.epsilon}
    with pytest.raises(ValueError, match="checkpoint"):
        resume(result.folder / "winner")
    assert carry_out_search(what, result.folder).claim == result.claim  # over, and says so again


def test_the_best_by_score_wins(tmp_path):
    what = plan_search(small(), GRID, PoissonNumber(6.0))
    rng = _begin_or_continue(what, tmp_path / "out", None)
    assert _run_trials(what, tmp_path / "out", rng)
    outcomes = [json.loads(path.read_text()) for path in (tmp_path / "out").glob("*/**/outcome.json")]
    winner = json.loads((tmp_path / "out" / "winner" / "outcome.json").read_text())
    assert len(outcomes) == what.number.draw(rng.child("number"))
    assert winner["score"] == max(outcome["score"] for outcome in outcomes)
    assert len({outcome["score"] for outcome in outcomes}) > 1


def test_a_search_that_dies_between_trials_goes_on_to_the_same_end(found, tmp_path, monkeypatch):
    what, straight = found
    folder, real = tmp_path / "out", search.carry_out_run
    deaths = []

    def dies(settings, place, view):
        if place.name not in deaths:  # the power goes before every trial, once
            deaths.append(place.name)
            raise MemoryError
        return real(settings, place, view)

    monkeypatch.setattr(search, "carry_out_run", dies)
    again = None
    while again is None:
        with suppress(MemoryError):
            again = carry_out_search(what, folder)
    assert len(deaths) >= 1
    assert again.chosen == straight.chosen
    one, other = (
        safetensors.torch.load_file(where.folder / "winner" / "model.safetensors") for where in (straight, again)
    )
    assert all(torch.equal(one[name], other[name]) for name in one)
    assert again.claim.event == straight.claim.event


def test_a_private_score_is_charged_and_noisy(tmp_path):
    what = plan_search(small(), GRID, NegativeBinomial(1.5), score_noise=25.0)
    assert what.event.event == Together(what.run, Gaussian(25.0))
    result = carry_out_search(what, tmp_path / "out")
    assert result.finished
    assert not any("public" in name for name in result.claim.not_covered)


@pytest.mark.slow
def test_the_noise_is_calibrated_to_the_whole_search():
    settings = small(noise_multiplier=None, epsilon=3.0)
    what = plan_search(settings, GRID, PoissonNumber(3.0))
    assert isinstance(what.event, TunePoisson)
    assert 2.9 < PLD().epsilon(what.event, 1e-5) <= 3.0


def test_a_search_is_entered_in_a_budget_once(tmp_path):
    budget = Budget.create(tmp_path / "budget.jsonl", epsilon=50.0, delta=1e-5)
    what = plan_search(small(), GRID, NegativeBinomial(1.2))
    carry_out_search(what, tmp_path / "out", budget.path)
    carry_out_search(what, tmp_path / "out", budget.path)
    assert [entry.event for entry in budget.entries()] == [what.event]


@pytest.mark.parametrize(
    ("grid", "options", "words"),
    [
        ({}, {}, "at least one field"),
        ({"steps": (6, 12)}, {}, "changes what a trial costs"),
        ({"rate": (0.05, 0.1)}, {}, "changes what a trial costs"),
        ({"speed": (1,)}, {}, "not a field"),
        (GRID, {"show_private": True}, "single runs"),
    ],
)
def test_what_cannot_be_searched_is_refused(grid, options, words):
    with pytest.raises(ValueError, match=words):
        plan_search(small(**options), grid, NegativeBinomial(3.0))


def test_a_folder_of_another_search_is_refused(found):
    _, result = found
    with pytest.raises(ValueError, match="another search"):
        carry_out_search(plan_search(small(), {"learning_rate": (0.1,)}, NegativeBinomial(3.0)), result.folder)


@pytest.mark.slow
def test_a_search_killed_at_any_moment_ends_as_one_that_was_not(tmp_path):
    def command(out):
        flags = "--steps 60 --records 1000 --noise-multiplier 2 --seed 5 --checkpoint-every 10 --evaluate-every 60"
        words = f"tune spiral {flags} --grid lr=.1,.5 --runs 4 --json --out {out}"
        return [sys.executable, "-m", "sordino.app.cli.main", *words.split()]

    subprocess.run(command(tmp_path / "straight"), check=True, capture_output=True)
    for wait in (0.1, 0.4, 0.9, 1.5):
        process = subprocess.Popen(command(tmp_path / "killed"), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        while process.poll() is None and not (tmp_path / "killed" / "search.json").exists():
            time.sleep(0.02)
        time.sleep(wait)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    last = subprocess.run(command(tmp_path / "killed"), check=True, capture_output=True, text=True).stdout
    assert json.loads(last.splitlines()[-1])["status"] == "finished"
    models = [(tmp_path / name / "winner" / "model.safetensors").read_bytes() for name in ("straight", "killed")]
    assert models[0] == models[1]
