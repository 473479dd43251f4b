"""Accountants, events, meter, budget and commands work without torch, and start fast."""

import json
import math
import multiprocessing
import subprocess
import sys

import pytest

from sordino import accounting as A
from sordino.app.cli import account, budget, calibrate, tradeoff
from sordino.events import Gaussian, NonPrivate, Poisson, Repeat, from_json


def test_nothing_here_imports_torch_or_scipy_stats():
    code = (
        "import sys, sordino.accounting, sordino.events, sordino.app.cli.account, sordino.app.cli.budget\n"
        "assert 'torch' not in sys.modules and 'scipy.stats' not in sys.modules and 'dp_accounting' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_the_meter_says_what_pld_says_for_every_count():
    event = Poisson(0.01, Gaussian(2.0))
    meter = A.Meter(event, 1e-5)
    for count in (0, 1, 3, 16, 40, 1000, 6001):
        low, high = A.PLD().bounds(Repeat(event, count), 1e-5) if count else (0.0, 0.0)
        assert low <= meter.epsilon(count) <= high * (1 + 2e-3)
    assert A.Meter(NonPrivate("no"), 1e-5).epsilon(3) == math.inf


def test_a_budget_refuses_what_would_exceed_it_and_keeps_what_it_allowed(tmp_path):
    path = tmp_path / "budget.jsonl"
    ours = A.Budget.create(path, epsilon=2.0, delta=1e-5)
    run = Repeat(Poisson(0.01, Gaussian(4.0)), 10_000)
    assert ours.spend(run, "first") == pytest.approx(0.947, abs=1e-3)
    assert ours.allows(run)
    ours.spend(run, "second")
    # 1.4, not 1.9: composition is not addition
    assert A.Budget(path).spent_epsilon() == pytest.approx(A.PLD().epsilon(Repeat(run, 2), 1e-5))
    with pytest.raises(A.BudgetExhausted, match="limit"):
        ours.spend(Gaussian(1.0))
    with pytest.raises(A.BudgetExhausted):
        ours.spend(NonPrivate("unknown batches"))
    assert [entry.name for entry in ours.entries()] == ["first", "second"]
    with pytest.raises(FileExistsError):
        A.Budget.create(path, 1.0, 1e-5)


def test_a_damaged_budget_stops_everything(tmp_path):
    path = tmp_path / "budget.jsonl"
    A.Budget.create(path, epsilon=2.0, delta=1e-5)
    with open(path, "a", encoding="utf-8") as file:
        file.write('{"name": "torn')
    with pytest.raises(ValueError, match="incomplete"):
        A.Budget(path).spend(Gaussian(5.0))


def _spend(path):
    try:
        A.Budget(path).spend(Gaussian(3.0))
    except A.BudgetExhausted:
        return 0
    return 1


def test_processes_cannot_share_the_last_of_a_budget(tmp_path):
    path = tmp_path / "budget.jsonl"
    A.Budget.create(path, epsilon=A.PLD().epsilon(Repeat(Gaussian(3.0), 3), 1e-5) * (1 + 1e-9), delta=1e-5)
    with multiprocessing.get_context("spawn").Pool(3) as pool:
        assert sum(pool.map(_spend, [path] * 9)) == 3
    assert len(A.Budget(path).entries()) == 3


def test_account_prints_json_and_explains(capsys):
    assert account.Command(rate=0.01, multiplier=4.0, steps=10_000, delta=1e-5, explain=True, json=True).run() == 0
    said = json.loads(capsys.readouterr().out)
    assert said["epsilon"] == pytest.approx(0.947, abs=1e-3)
    assert said["certified_lower"] <= said["epsilon"]
    assert len(said["methods"]) == 8
    assert from_json(said["event"]) == Repeat(Poisson(0.01, Gaussian(4.0)), 10_000)


@pytest.mark.parametrize("sampling", ["poisson", "shuffle", "balls-in-bins", "fixed-size"])
def test_account_knows_every_way_of_sampling(capsys, sampling):
    command = account.Command(rate=0.02, multiplier=2.0, steps=100, sampling=sampling, dataset_size=1000, explain=True)
    assert command.run() == 0
    said = capsys.readouterr().out
    assert "DP by PLD" in said
    assert ("attack proves" in said) == (sampling == "shuffle")


def test_account_draws_and_gives_delta(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    plot = tmp_path / "profile.svg"
    assert account.Command(rate=0.02, multiplier=2.0, steps=100, epsilon=1.0, plot=plot, json=True).run() == 0
    assert 0 < json.loads(capsys.readouterr().out)["delta"] < 1
    assert plot.stat().st_size > 1000


def test_calibrate_finds_the_one_parameter_left_out(capsys):
    assert calibrate.Command(epsilon=1.0, rate=0.01, steps=10_000, json=True).run() == 0
    assert json.loads(capsys.readouterr().out)["value"] == pytest.approx(3.8129, rel=5e-4)
    assert calibrate.Command(epsilon=1.0, rate=0.01, multiplier=4.0, accountant="rdp", json=True).run() == 0
    assert isinstance(json.loads(capsys.readouterr().out)["value"], int)
    with pytest.raises(ValueError, match="exactly one"):
        calibrate.Command(epsilon=1.0, rate=0.01).run()


def test_tradeoff_bounds_every_attack(capsys):
    assert tradeoff.Command(rate=0.01, multiplier=4.0, steps=1000, json=True).run() == 0
    said = json.loads(capsys.readouterr().out)
    rates = zip(said["false_positive_rate"], said["largest_true_positive_rate"], strict=True)
    assert all(alpha <= beta < 1 for alpha, beta in rates)


def test_the_budget_command_exits_with_3_when_exhausted(capsys, tmp_path):
    path = tmp_path / "b.jsonl"
    assert budget.Command("create", path, epsilon=1.0, delta=1e-5).run() == 0
    assert budget.Command("create", path, epsilon=1.0, delta=1e-5).run() == 2
    assert budget.Command("spend", path, rate=0.01, multiplier=4.0, steps=10_000, name="a").run() == 0
    assert budget.Command("spend", path, rate=0.01, multiplier=4.0, steps=10_000).run() == 3
    capsys.readouterr()
    assert budget.Command("show", path, json=True).run() == 0
    assert len(json.loads(capsys.readouterr().out)["runs"]) == 1
