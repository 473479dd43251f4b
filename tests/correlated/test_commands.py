"""Correlated noise and truncated draws in `sordino account`, `sordino calibrate`, the planner and the report."""

import json

import pytest

import sordino as sd
from sordino.accounting import PLD
from sordino.app.cli.main import main
from sordino.app.planner.answer import answer
from sordino.app.planner.scenario import parse
from sordino.app.planner.scenario_curves import curves
from sordino.app.report.checklist import _describe_assumptions

CASES = {
    # The values that the golden files have for these runs.
    "cyclic": ("--rate 0.00625 --steps 512 --sampling cyclic-poisson --bands 16 --delta 1e-6", 1.40582, 1.40594),
    "one band": ("--rate 0.1 --steps 512 --sampling cyclic-poisson --delta 1e-6", 3.76960, 3.76992),
    "fixed order": ("--rate 0.001 --steps 1000 --sampling fixed-order --bands 1000 --delta 1e-6", 2.7677, 2.7678),
    "ten epochs": ("--rate 0.01 --steps 1000 --sampling fixed-order --bands 1000 --delta 1e-6", 18.5593, 18.5594),
}


def say(capsys, *arguments):
    """Returns the JSON that a command prints, and its exit code."""
    code = main([*arguments, "--json"])
    return json.loads(capsys.readouterr().out), code


@pytest.mark.parametrize("name", CASES)
def test_account_says_what_the_reference_says(name, capsys):
    flags, least, most = CASES[name]
    said, code = say(capsys, "account", "--multiplier", "3", *flags.split())
    assert code == 0
    assert said["certified_lower"] <= most
    assert least * (1 - 1e-4) <= said["epsilon"] <= most * (1 + 1e-4)


def test_account_prices_truncated_draws_by_their_event(capsys):
    flags = "--rate 0.01 --multiplier 1 --steps 100 --sampling truncated-poisson --dataset-size 1000 --max-batch 20"
    said, _ = say(capsys, "account", *flags.split())
    event = sd.events.Repeat(sd.events.TruncatedPoisson(0.01, 1000, 20, sd.events.Gaussian(1.0)), 100)
    assert sd.events.from_json(said["event"]) == event
    assert said["epsilon"] == PLD().epsilon(event, 1e-5)


def test_calibrate_finds_the_noise_that_account_accounts_for(capsys):
    flags = "--rate 0.00625 --steps 512 --sampling cyclic-poisson --bands 16 --delta 1e-6 --epsilon 1.40594"
    found, _ = say(capsys, "calibrate", *flags.split())
    assert found["value"] == pytest.approx(3.0, rel=1e-3)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ("--bands 4", "no price"),
        ("--bands 4 --sampling shuffle", "no price"),
        ("--bands 4 --sampling cyclic-poisson --noise laplace", "no price"),
        ("--bands 16 --rate 0.1 --sampling cyclic-poisson", "at most 10 bands"),
        ("--sampling truncated-poisson", "--max-batch"),
    ],
)
def test_what_has_no_theorem_is_refused(flags, said, capsys):
    code = main(["account", "--rate", "0.01", "--multiplier", "1", "--steps", "10", *flags.split()])
    assert code == 2
    assert said in capsys.readouterr().err


def test_the_report_says_in_words_that_noise_is_correlated():
    event = sd.events.CyclicPoisson(0.1, 16, 512, sd.events.Correlated(3.0, ("banded", 16)))
    said = _describe_assumptions(event)
    assert "correlated between steps" in said
    assert "one group by its own secret coin" in said
    assert "correlated" not in _describe_assumptions(sd.events.Poisson(0.1, sd.events.Gaussian(1.0)))


def test_the_planner_answers_for_bands_what_account_says():
    scenario = parse({"dataset_size": 60000.0, "batch": 120, "epochs": 4, "delta": 1e-5, "epsilon": 3.0, "bands": 16.0})
    said = answer(scenario)
    event = sd.events.CyclicPoisson(0.002 * 16, 16, 2000, sd.events.Correlated(said["multiplier"], ("banded", 16)))
    assert scenario.event(said["multiplier"]) == event
    assert said["epsilon"] <= 3.0
    assert said["epsilon"] == pytest.approx(PLD().epsilon(event, 1e-5), rel=1e-3)
    assert "--sampling cyclic-poisson --bands 16" in said["command"]
    assert "sd.CyclicPoisson(16 * 120 / 60_000, groups=16)" in said["code"]


@pytest.mark.parametrize("bands", [1, 16])
def test_the_planner_draws_the_error_against_bands_at_the_same_epsilon(bands):
    scenario = parse({"dataset_size": 60000, "batch": 120, "epochs": 4, "delta": 1e-6, "epsilon": 3.0, "bands": bands})
    drawn = curves(scenario)
    by_bands = dict(zip(drawn["bands"]["x"], drawn["bands"]["y"], strict=True))
    # 0.50 with 16 bands is what docs/how_to/correlated_noise.md and bench/correlated.py have for these lots.
    assert by_bands[1] == 1.0
    assert by_bands[16] == pytest.approx(0.50, abs=0.01)
    assert drawn["epochs"]["y"] == sorted(drawn["epochs"]["y"])


def test_the_planner_refuses_more_bands_than_groups_of_a_lot():
    with pytest.raises(ValueError, match="at most 10 bands"):
        parse({"dataset_size": 1000, "batch": 100, "epochs": 4, "delta": 1e-5, "epsilon": 3.0, "bands": 16})
