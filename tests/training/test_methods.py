"""Every method trains by its name, releases what its plan says, and has a guarantee exactly where a proof is."""

import pytest

import sordino
from sordino.claims import Guarantee, NoGuarantee
from sordino.events import NonPrivate
from sordino.training.fit import carry_out
from sordino.training.job import assemble
from sordino.training.live import Silent
from sordino.training.methods import METHODS
from sordino.training.samplers import SAMPLERS
from sordino.training.settings import settle

WITHOUT = {
    "batch-median",
    "batch-minimum",
    "microbatches-by-position",
    "projected",
    "sorted-top-k",
    "sorted-quantile",
    "sorted-class-diverse",
    "sorted-similar-length",
}
TINY = {"steps": 4, "records": 120, "seed": 3, "report": False, "noise_multiplier": 1.5, "evaluate_every": 4}


def test_those_without_a_proof_are_known_by_name():
    assert set(METHODS) >= WITHOUT
    assert all(("no guarantee" in METHODS[name].about) == (name in WITHOUT) for name in METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_releases_what_its_plan_says(name, tmp_path):
    settings = settle("spiral", {**TINY, "method": name})
    planned = assemble(settings, lambda text: None).event()
    history = carry_out(settings, tmp_path, Silent())
    assert history.finished
    if name in WITHOUT:
        assert isinstance(planned, NonPrivate)
        assert isinstance(history.claim, NoGuarantee)
        assert all(row.epsilon is None for row in history.rows)
    else:
        assert isinstance(history.claim, Guarantee)
        assert history.claim.event == planned


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_sampler_releases_what_its_plan_says(name, tmp_path):
    settings = settle("spiral", {**TINY, "sampler": name})
    assert carry_out(settings, tmp_path, Silent()).claim.event == assemble(settings, lambda text: None).event()


@pytest.mark.parametrize("name", sorted(set(METHODS) - WITHOUT))
def test_the_noise_is_calibrated_to_the_whole_run(name):
    given = {"epsilon": 4.0, "steps": 6, "method": name, "normalise": 30.0}
    planned = assemble(settle("spiral", given), lambda text: None).planned()
    assert 3.95 < planned.epsilon <= 4.0


def test_no_noise_meets_an_epsilon_where_there_is_no_proof(tmp_path):
    with pytest.raises(ValueError, match=r"epsilon=3: no noise meets it, .*; give noise_multiplier instead"):
        sordino.fit("spiral", method="projected", records=100, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_l2_penalty_changes_the_network_and_not_the_claim(tmp_path):
    plain = sordino.fit("spiral", out=tmp_path / "plain", **TINY)
    other = sordino.fit("spiral", out=tmp_path / "penalty", penalty=0.5, **TINY)
    assert plain.claim == other.claim
    assert plain.rows[-1].test_loss != other.rows[-1].test_loss


def test_the_run_stops_before_it_exceeds_its_budget(tmp_path):
    given = {"records": 200, "steps": 300, "report": False, "noise_multiplier": 1.0}
    history = sordino.fit("spiral", out=tmp_path, epsilon=2.0, budget_stop=True, **given)
    assert history.finished
    assert 1 <= history.rows[-1].step < 300
    one_more = sordino.fit("spiral", out=tmp_path / "more", **{**given, "steps": history.rows[-1].step + 1})
    assert history.claim.epsilon <= 2.0 < one_more.claim.epsilon


def test_what_is_shown_of_private_quantities_is_said_in_the_claim(tmp_path):
    history = sordino.fit("spiral", out=tmp_path, show_private=True, **TINY)
    assert "training loss, shown while training" in history.claim.not_covered
