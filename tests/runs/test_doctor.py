"""The doctor says why a run learnt little from what was released, and releases nothing unless it is asked to."""

import json

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.accounting import PLD
from sordino.app.cli.main import main
from sordino.app.runs.directory import read_further_releases
from sordino.app.runs.doctor import GOOD, LOOK, PROBLEM, UNKNOWN, examine_run, release_share_clipped
from sordino.app.runs.fit import resume
from sordino.app.runs.job import assemble_job
from sordino.app.runs.settings import read_config
from sordino.events import Gaussian, compose
from sordino.optim.signal_to_noise import figures_by_layer

N, COLUMNS = 1000, 60


def _fit(tmp_path, *, learnable, noise=1.0, **given):
    """Trains a linear model on two classes that can be told apart, or on coin flips."""
    torch.manual_seed(0)
    x = torch.randn(N, COLUMNS)
    y = (x[:, 0] > 0).long() if learnable else torch.randint(0, 2, (N,))
    fields = {
        "noise_multiplier": noise,
        "steps": 40,
        "rate": 0.25,
        "optimizer": "sgd",
        "learning_rate": 0.5,
        "ema": 0.0,
    }
    return sd.fit(nn.Linear(COLUMNS, 2), TensorDataset(x, y), out=tmp_path / "run", **{**fields, **given})


def _grades(examination):
    return {symptom.name: symptom.grade for symptom in examination.symptoms}


def test_a_run_that_learns_is_good_and_one_of_noise_is_not(tmp_path):
    good = examine_run(_fit(tmp_path / "good", learnable=True).run)
    bad = examine_run(_fit(tmp_path / "bad", learnable=False, noise=40.0, learning_rate=5.0).run)
    assert (_grades(good)["signal to noise"], _grades(good)["baseline"]) == (GOOD, GOOD)
    assert _grades(bad)["signal to noise"] == PROBLEM
    assert _grades(bad)["learning rate"] == PROBLEM, "noise carries the parameters far beyond their start"
    assert "train fewer than 122 numbers" in str(bad)


def test_a_learning_rate_that_moves_nothing_is_named(tmp_path):
    found = examine_run(_fit(tmp_path, learnable=True, learning_rate=1e-4).run)
    assert _grades(found)["learning rate"] == LOOK


def test_the_doctor_reads_the_run_directory_alone_and_charges_nothing(tmp_path):
    """The data are in no file of this run, so nothing of them can be said; and the claim stays as it was."""
    history = _fit(tmp_path, learnable=True)
    before = (history.run / "privacy.json").read_bytes()
    found = examine_run(history.run)
    assert _grades(found)["share clipped"] == UNKNOWN
    assert "is private" in str(found)
    assert (history.run / "privacy.json").read_bytes() == before
    assert read_further_releases(history.run) == []


def test_a_void_claim_is_the_first_thing_said(tmp_path):
    history = _fit(tmp_path, learnable=True)
    path = history.run / "privacy.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "claim": {"reason": "a record was printed"}}))
    assert examine_run(history.run).symptoms[0].grade == PROBLEM


def test_the_figures_of_layers_find_the_one_that_has_no_signal():
    """The oracle is made by hand: sums of released gradients are t g + √t s z, and g is known for each layer."""
    generator = torch.Generator().manual_seed(0)
    steps, deviation, count = 100, 0.5, 4000
    signal = {"first": 0.0, "second": 0.2}  # on every coordinate
    sums = {
        f"{name}.weight": steps * g + steps**0.5 * deviation * torch.randn(count, generator=generator)
        for name, g in signal.items()
    }
    figures = figures_by_layer(sums, steps, deviation)
    assert figures["first"] == 0
    assert figures["second"] == pytest.approx(steps**0.5 * signal["second"] / deviation, rel=0.05)


@pytest.fixture
def spiral(tmp_path):
    return sd.fit("spiral", steps=20, records=500, out=tmp_path / "run")


def test_the_share_of_clipped_records_is_released_with_noise_and_charged(spiral):
    claim_before = spiral.claim
    found, claim = release_share_clipped(spiral.run, noise=20.0)
    event = compose([claim_before.event, Gaussian(20.0)])
    assert claim.epsilon == pytest.approx(PLD().epsilon(event, claim.delta), rel=1e-6)
    assert claim.epsilon > claim_before.epsilon
    assert json.loads((spiral.run / "privacy.json").read_text())["claim"]["epsilon"] == claim.epsilon
    assert "sordino doctor" in str(claim)
    # The oracle: lengths by autograd, record by record. Noise of 20 records in 500 is 4 %; 5 deviations are allowed.
    settings = read_config(spiral.run / "config.toml").to_settings()
    job = assemble_job(settings, lambda _: None)
    model, (x, y) = spiral.model, job.data.train.tensors
    longer = 0
    for k in range(len(x)):
        loss = job.problem.loss_fn(model, x[k : k + 1], y[k : k + 1]).sum()
        grads = torch.autograd.grad(loss, [p for p in model.parameters() if p.requires_grad])
        longer += float(sum(g.square().sum() for g in grads)) ** 0.5 > settings.recipe.bound
    share = float(found.found.split("about ")[1].split("%")[0]) / 100
    assert share == pytest.approx(min(1.0, longer / len(x)), abs=5 * 20 / len(x) + 0.01)


def test_a_finished_run_that_is_resumed_keeps_the_charge(spiral):
    _, claim = release_share_clipped(spiral.run, noise=20.0)
    again = resume(spiral.run)
    assert again.claim.epsilon == pytest.approx(claim.epsilon, rel=1e-9)


def test_the_share_is_refused_where_the_data_are_in_no_file(tmp_path):
    history = _fit(tmp_path, learnable=True)
    with pytest.raises(ValueError, match="finished run by record"):
        release_share_clipped(history.run, noise=20.0)
    assert read_further_releases(history.run) == [], "refused before anything is charged"


def test_the_command_prints_what_was_found(spiral, capsys):
    assert main(["doctor", str(spiral.run)]) == 0
    assert "signal to noise" in capsys.readouterr().out
    assert main(["doctor", str(spiral.run), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["symptoms"][0]["name"] == "claim"
    assert main(["doctor", str(spiral.run), "--ask-clipped", "20"]) == 0
    assert "The claim of the run is now" in capsys.readouterr().out
