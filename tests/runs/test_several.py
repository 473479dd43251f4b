"""Several seeds: other networks, lots and noise each time; mean and spread; and the claim of all of them together."""

import json
import statistics

import pytest

from sordino.accounting import PLD
from sordino.app.cli.main import main
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.settings import make_settings
from sordino.app.runs.several_seeds import Spread, carry_out_several, claim_together
from sordino.events import compose
from sordino.ledger.claims import Guarantee, NoGuarantee

TINY = {"steps": 5, "records": 200, "noise_multiplier": 1.5}


def test_runs_differ_and_their_mean_and_spread_are_told(tmp_path):
    found = carry_out_several(make_settings("spiral", {**TINY, "seed": 7}), 3, tmp_path / "all", Silent())
    losses = [run.test_loss for run in found.runs]
    assert len(set(losses)) == 3
    assert found.test_loss.mean == pytest.approx(statistics.fmean(losses))
    assert found.test_loss.deviation == pytest.approx(statistics.stdev(losses))
    starts = {(run.run / "initial.safetensors").read_bytes() for run in found.runs}
    assert len(starts) == 3
    written = json.loads((tmp_path / "all" / "summary.json").read_text())
    assert written["test_accuracy"]["mean"] == found.test_accuracy.mean
    assert [one["claim"]["epsilon"] for one in written["each"]] == [run.claim.epsilon for run in found.runs]


def test_all_runs_together_cost_the_composition_of_them_all(tmp_path):
    found = carry_out_several(make_settings("spiral", TINY), 2, tmp_path / "all", Silent())
    one, two = (run.claim for run in found.runs)
    assert isinstance(found.joint_claim, Guarantee)
    assert found.joint_claim.epsilon == PLD().epsilon(compose([one.event, two.event]), 1e-5)
    assert found.joint_claim.epsilon > one.epsilon
    assert len(found.joint_claim.rests_on) == len(one.rests_on) + len(two.rests_on)


def test_one_run_without_a_guarantee_leaves_all_of_them_without_one(tmp_path):
    found = carry_out_several(
        make_settings("spiral", {**TINY, "sampler": "sorted-top-k"}), 2, tmp_path / "all", Silent()
    )
    assert isinstance(found.joint_claim, NoGuarantee)
    good = carry_out_several(make_settings("spiral", TINY), 1, tmp_path / "good", Silent()).runs[0].claim
    assert claim_together([good, found.runs[0].claim], 1e-5) is found.runs[0].claim


def test_a_number_that_a_run_does_not_have_has_no_spread():
    assert Spread.of_values([0.5, None]) is None
    assert Spread.of_values([0.5]).deviation is None


def test_the_command_says_both_claims(tmp_path, capsys):
    arguments = ["train", "spiral", "--steps", "5", "--records", "200", "--noise-multiplier", "1.5", "--no-report"]
    assert main([*arguments, "--seeds", "2", "--out", str(tmp_path / "all")]) == 0
    said = capsys.readouterr().out
    assert "2 seeds" in said
    assert said.count("-differential privacy") == 2
    assert "All of them together" in said
    assert main([*arguments, "--seeds", "2", "--json", "--out", str(tmp_path / "again")]) == 0
    table = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert table["seeds"] == 2
    assert table["together"]["epsilon"] > table["each"][0]["claim"]["epsilon"]
    assert main([*arguments, "--seeds", "0"]) == 2
