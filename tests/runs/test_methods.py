"""Every method trains by its name, releases what its plan says, and has a guarantee exactly where a proof is."""

import copy

import pytest
import torch

import sordino
from sordino.accounting import PLD
from sordino.app.data import digits
from sordino.app.runs import build, event, find, noise_multiplier, prepare, project, standardise
from sordino.app.runs.fit import carry_out_run
from sordino.app.runs.job import assemble_job
from sordino.app.runs.methods import DECLARATIONS, METHODS
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.recipe import OPTIMIZERS
from sordino.app.runs.run_data import load_run_data
from sordino.app.runs.settings import make_settings
from sordino.events import Gaussian, NonPrivate, compose
from sordino.ledger.claims import Guarantee, NoGuarantee
from sordino.rng.streams import Rng

SAMPLERS = tuple(one.name for declared in DECLARATIONS for one in declared.samplers)
WITHOUT = {
    "batch-median",
    "batch-mean",
    "batch-minimum",
    "microbatches-by-position",
    "projected",
    "sorted-top-k",
    "sorted-quantile",
    "sorted-class-diverse",
    "sorted-similar-length",
}
TINY = {"steps": 4, "records": 120, "seed": 3, "noise_multiplier": 1.5, "evaluate_every": 4}


def test_those_without_a_proof_are_known_by_name():
    assert set(METHODS) >= WITHOUT
    assert all(("no guarantee" in METHODS[name].about) == (name in WITHOUT) for name in METHODS)


@pytest.mark.parametrize("name", METHODS)
def test_a_method_releases_what_its_plan_says(name, tmp_path):
    settings = make_settings("spiral", {**TINY, "method": name})
    planned = assemble_job(settings, lambda text: None).event()
    history = carry_out_run(settings, tmp_path, Silent())
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
    settings = make_settings("spiral", {**TINY, "sampler": name})
    assert carry_out_run(settings, tmp_path, Silent()).claim.event == assemble_job(settings, lambda text: None).event()


@pytest.mark.parametrize("name", sorted(set(METHODS) - WITHOUT))
def test_the_noise_is_calibrated_to_the_whole_run(name):
    given = {"epsilon": 4.0, "steps": 6, "method": name, "normalise": 30.0}
    planned = assemble_job(make_settings("spiral", given), lambda text: None).planned_claim()
    assert 3.95 < planned.epsilon <= 4.0


@pytest.mark.parametrize("name", sorted(set(METHODS) - WITHOUT))
def test_the_noise_of_a_recipe_is_that_of_its_run_by_every_method(name):
    settings = make_settings("spiral", {"epsilon": 3.0, "steps": 6, "method": name, "normalise": 30.0})
    job = assemble_job(settings, lambda text: None)
    assert noise_multiplier(settings.recipe, job.data) == job.multiplier
    assert event(settings.recipe, job.multiplier, job.data) == job.event()


@pytest.mark.parametrize("name", SAMPLERS)
def test_the_noise_of_a_recipe_is_that_of_its_run_by_every_sampler(name):
    settings = make_settings("spiral", {"epsilon": 3.0, "steps": 6, "sampler": name})
    job = assemble_job(settings, lambda text: None)
    assert noise_multiplier(settings.recipe, job.data) == job.multiplier


def test_microbatches_do_not_get_the_noise_of_plain_steps():
    """Their sensitivity is twice the bound, so the plain σ at ε = 3 would cost several times that."""
    plain = make_settings("spiral", {"epsilon": 3.0, "steps": 100, "records": 500}).recipe
    prepared = load_run_data(plain, 500, lambda text: None)
    other = plain.but(method="microbatches")
    sigma = noise_multiplier(other, prepared)
    assert PLD().epsilon(event(other, sigma, prepared), other.delta) <= 3.0
    assert PLD().epsilon(event(other, noise_multiplier(plain), prepared), other.delta) > 6.0


@pytest.mark.parametrize(
    ("change", "named"),
    [({"method": "microbatches"}, "method='microbatches'"), ({"sampler": "shuffle"}, "sampler='shuffle'")],
)
def test_a_method_whose_cost_is_not_known_without_the_data_is_refused(change, named):
    with pytest.raises(ValueError, match=rf"{named}.*noise_multiplier\(recipe, prepare\(recipe, data\)\)"):
        noise_multiplier(make_settings("spiral", {"epsilon": 3.0, **change}).recipe)


DECAYS = {
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.1, weight_decay=5.0),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.5, weight_decay=5.0),
    "adam": lambda p: torch.optim.Adam(p, lr=0.1, betas=(0.5, 0.999), weight_decay=5.0),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.5, 0.999), weight_decay=5.0),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_every_optimizer_takes_the_weight_decay(optimizer, tmp_path):
    """Torch's own where it is torch's; and it costs no privacy."""
    given = {"optimizer": optimizer, "learning_rate": 0.1, "weight_decay": 5.0}
    given["momentum"] = 0.0 if optimizer == "adagrad" else 0.5
    job = assemble_job(make_settings("spiral", {**TINY, **given}), lambda text: None)
    ours = job.problem.optimizer
    assert [group["weight_decay"] for group in ours.param_groups] == [5.0]
    if optimizer not in DECAYS:
        return
    model = copy.deepcopy(job.problem.model)
    theirs = DECAYS[optimizer](model.parameters())
    for mine, other in zip(job.problem.model.parameters(), model.parameters(), strict=True):
        mine.grad, other.grad = torch.ones_like(mine), torch.ones_like(other)
    ours.step()
    theirs.step()
    assert all(map(torch.equal, job.problem.model.parameters(), model.parameters()))


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_weight_decay_changes_the_network_and_not_the_claim(optimizer, tmp_path):
    given = {**TINY, "optimizer": optimizer}
    plain = sordino.fit("spiral", out=tmp_path / "plain", **given)
    other = sordino.fit("spiral", out=tmp_path / "decayed", weight_decay=5.0, **given)
    assert plain.claim == other.claim
    assert plain.rows[-1].test_loss != other.rows[-1].test_loss


def test_no_noise_meets_an_epsilon_where_there_is_no_proof(tmp_path):
    with pytest.raises(ValueError, match=r"epsilon=3: no noise meets it, .*; give noise_multiplier instead"):
        sordino.fit("spiral", method="projected", records=100, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_an_l2_penalty_changes_the_network_and_not_the_claim(tmp_path):
    plain = sordino.fit("spiral", out=tmp_path / "plain", **TINY)
    other = sordino.fit("spiral", out=tmp_path / "penalty", penalty=0.5, **TINY)
    assert plain.claim == other.claim
    assert plain.rows[-1].test_loss != other.rows[-1].test_loss


def test_a_corrected_adam_knows_the_noise_and_costs_nothing(tmp_path):
    plain = sordino.fit("spiral", out=tmp_path / "plain", **TINY)
    settings = make_settings("spiral", {**TINY, "optimizer": "adam-corrected"})
    job = assemble_job(settings, lambda text: None)
    assert job.problem.optimizer.noise(0) == pytest.approx(1.5 * 1.0 / (0.05 * 120))
    other = carry_out_run(settings, tmp_path / "corrected", Silent())
    assert other.claim == plain.claim
    assert other.rows[-1].test_loss != plain.rows[-1].test_loss


@pytest.mark.parametrize("name", ["scheduled", "adaptive-quantile", "adaptive-layerwise", "noisy-lookahead"])
def test_a_corrected_adam_is_refused_where_the_noise_changes(name, tmp_path):
    with pytest.raises(ValueError, match="optimizer='adam-corrected': needs noise of one scale throughout"):
        sordino.fit("spiral", method=name, optimizer="adam-corrected", out=tmp_path / "run", **TINY)


def test_a_corrected_adam_that_was_not_told_the_noise_does_not_step():
    problem = build(find("spiral").but(optimizer="adam-corrected"), load_run_data(find("spiral"), 50, print), seed=0)
    for p in problem.model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(RuntimeError, match="was not told the noise"):
        problem.optimizer.step()


def test_directions_and_moments_are_in_the_claim_and_the_noise_makes_room_for_them(tmp_path):
    given = {"epsilon": 2.0, "steps": 6, "records": 400, "normalise": 30.0, "pca": 15.0, "components": 1, "seed": 3}
    settings = make_settings("spiral", {**given, "model": "hidden-1000"})
    job = assemble_job(settings, lambda text: None)
    history = carry_out_run(settings, tmp_path, Silent())
    assert history.claim.event == job.event()
    assert [Gaussian(30.0), Gaussian(15.0)] == list(history.claim.event.events[:2])
    assert 1.99 < history.claim.epsilon <= 2.0
    assert job.resolved_table()["trainable"] == 1 * 1000 + 1000 + 1000 * 3 + 3


def test_the_model_sees_the_principal_directions_of_what_was_standardised():
    """With next to no noise they are those of the exact matrix, whatever comes before the projection."""
    recipe = find("digits").but(pca=1e-6, components=5)
    prepared = prepare(recipe, digits(300, 20))
    model, ledger = build(recipe, prepared, seed=0).model, sordino.Ledger()
    standardise(model, prepared.train, 20.0, ledger, Rng.from_seed(0))
    project(model, prepared.train, 1e-6, ledger, Rng.from_seed(1))
    rows = model[0](prepared.train.tensors[0]).flatten(1).double()
    rows /= rows.norm(dim=1, keepdim=True)
    true = torch.linalg.eigh(rows.T @ rows)[1].flip(1)[:, :5]
    assert (true.T @ model[1].basis.double()).abs().diagonal().min() > 1 - 1e-6
    assert ledger.event() == compose([Gaussian(20.0), Gaussian(1e-6)])


def test_more_directions_than_numbers_are_refused(tmp_path):
    with pytest.raises(ValueError, match="components=60: the records have only 2 numbers each"):
        sordino.fit("spiral", pca=5.0, out=tmp_path / "run", **TINY)


def test_the_run_stops_before_it_exceeds_its_budget(tmp_path):
    given = {"records": 200, "steps": 300, "noise_multiplier": 1.0}
    history = sordino.fit("spiral", out=tmp_path, epsilon=2.0, budget_stop=True, **given)
    assert history.finished
    assert 1 <= history.rows[-1].step < 300
    one_more = sordino.fit("spiral", out=tmp_path / "more", **{**given, "steps": history.rows[-1].step + 1})
    assert history.claim.epsilon <= 2.0 < one_more.claim.epsilon


def test_what_is_shown_of_private_quantities_is_said_in_the_claim(tmp_path):
    history = sordino.fit("spiral", out=tmp_path, show_private=True, **TINY)
    assert "training loss, shown while training" in history.claim.not_covered
