"""Looks at a run: by class, at the training records, at every step; what is private is in the claim by name."""

import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino
from sordino.app.report import write
from sordino.app.runs import Recipe, training_loop
from sordino.app.runs.evaluate import evaluate
from sordino.app.runs.fit import resume
from sordino.app.runs.job import TRAINING_EVALUATED, TRAINING_LOSS, assemble_job
from sordino.app.runs.problem import LOSSES, cross_entropy
from sordino.app.runs.settings import make_settings
from sordino.diagnostics import CLASSES, LENGTHS, SUBSTEPS
from sordino.ledger.claims import Guarantee

TINY = {"steps": 6, "records": 120, "seed": 3, "noise_multiplier": 1.5, "evaluate_every": 3}


def lines(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def test_accuracy_by_class_is_that_of_each_class_alone():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(50, 4, generator=generator), torch.randint(3, (50,), generator=generator)
    y[y == 1] = 0  # nobody is of class 1
    model = nn.Linear(4, 3)
    found = evaluate(model, TensorDataset(x, y), cross_entropy, 3)
    said = model(x).argmax(1)
    assert found.by_class == [float((said == k)[y == k].double().mean()) if k != 1 else None for k in range(3)]
    assert found.accuracy == pytest.approx(float((said == y).double().mean()))
    assert found.loss == pytest.approx(nn.functional.cross_entropy(model(x), y).item())


def test_a_line_of_metrics_has_what_was_asked_for_and_no_more(tmp_path):
    history = sordino.fit("spiral", out=tmp_path / "plain", **TINY)
    assert set(lines(tmp_path / "plain")[0]) == {
        *("step", "epoch", "epsilon", "delta", "test_accuracy", "test_loss", "learning_rate", "seconds"),
        *("test_by_class", "measures", "signal_to_noise"),
    }
    assert not {TRAINING_LOSS, TRAINING_EVALUATED, LENGTHS, CLASSES} & set(history.claim.not_covered)


def test_every_step_is_diagnosed_and_disclosed_from_the_beginning(tmp_path):
    settings = make_settings("spiral", {**TINY, "diagnose": "classes,cosines,lengths"})
    assert {LENGTHS, CLASSES} <= set(assemble_job(settings, lambda text: None).planned_claim().not_covered)
    history = sordino.fit("spiral", out=tmp_path / "run", diagnose="classes,cosines,lengths", **TINY)
    assert isinstance(history.claim, Guarantee)
    assert {LENGTHS, CLASSES} <= set(history.claim.not_covered)
    first, second = lines(tmp_path / "run")
    assert [len(row[name]) for row in (first, second) for name in ("cosines", "lengths", "classes")] == [3] * 6
    assert first["cosines"][0] is None
    assert all(-1 <= value <= 1 for value in [*first["cosines"][1:], *second["cosines"]])
    assert all(box == sorted(box) for box in first["lengths"])
    assert all(0 < share <= 1 and label in (0, 1, 2) for label, share in second["classes"])


def test_cosines_alone_are_covered_by_the_claim_and_change_nothing(tmp_path):
    plain = sordino.fit("spiral", out=tmp_path / "plain", **TINY)
    other = sordino.fit("spiral", out=tmp_path / "other", diagnose="cosines", **TINY)
    assert plain.claim == other.claim
    assert plain.rows[-1].test_loss == other.rows[-1].test_loss


def test_a_diagnosis_goes_on_where_it_was(tmp_path, monkeypatch):
    given = {**TINY, "diagnose": "cosines,lengths", "checkpoint_every": 1}
    calm = sordino.fit("spiral", out=tmp_path / "calm", **given)
    steps = []
    original = training_loop.Training.take_step

    def stopped(self):
        original(self)
        steps.append(1)
        if len(steps) == 4:
            raise KeyboardInterrupt

    monkeypatch.setattr(training_loop.Training, "take_step", stopped)
    with pytest.raises(KeyboardInterrupt):
        sordino.fit("spiral", out=tmp_path / "killed", **given)
    monkeypatch.undo()
    after = resume(tmp_path / "killed")
    assert [(row.cosines, row.lengths) for row in after.rows] == [(row.cosines, row.lengths) for row in calm.rows]


def test_training_accuracy_is_behind_a_flag_and_in_the_claim(tmp_path):
    history = sordino.fit("spiral", out=tmp_path / "run", show_private=True, **TINY)
    assert {TRAINING_LOSS, TRAINING_EVALUATED} <= set(history.claim.not_covered)
    data = assemble_job(make_settings("spiral", TINY), lambda text: None).data.train
    x, y = data.tensors
    right = float((history.model.eval()(x).argmax(1) == y).double().mean())
    assert history.rows[-1].train_accuracy == pytest.approx(right)
    assert lines(tmp_path / "run")[-1]["train_loss"] > 0


def test_substeps_are_the_cosine_of_the_update_with_its_first_part(tmp_path):
    given = {**TINY, "query": "projected", "diagnose": "substeps", "learning_rate": 1.0}
    history = sordino.fit("spiral", out=tmp_path / "run", **given)
    values = [value for row in history.rows for value in row.substeps]
    assert len(values) == 6
    assert all(0 < value <= 1 + 1e-9 for value in values)
    assert min(values) < 1 - 1e-6  # the second part is another one
    with pytest.raises(ValueError, match="substeps are those of --query projected"):
        sordino.fit("spiral", out=tmp_path / "other", diagnose="substeps", **TINY)


def test_substeps_are_disclosed_by_name(tmp_path):
    found = assemble_job(
        make_settings("spiral", {**TINY, "query": "projected", "diagnose": "substeps"}), lambda text: None
    )
    assert SUBSTEPS in found.list_not_covered()


@pytest.mark.parametrize("text", ["cosine", "cosines,", ""])
def test_an_unknown_look_is_refused(text):
    with pytest.raises(ValueError, match="there is cosines, lengths, classes, substeps"):
        make_settings("spiral", {"diagnose": text})


LINE = Recipe(
    name="line",
    dataset="line",
    features="none",
    model="linear",
    loss="squared",
    rate=0.1,
    steps=60,
    bound=1e6,
    noise_multiplier=0.0,
    delta=1e-5,
    learning_rate=0.3,
)


def test_numbers_are_learnt_by_the_squared_error_and_have_no_accuracy(tmp_path):
    """The noise of the data has variance 1, so ½ is the least loss there is; 10 is the slope it was made with."""
    history = sordino.fit(LINE, out=tmp_path / "run")
    assert history.test_accuracy is None
    assert history.test_loss == pytest.approx(0.5, abs=0.1)
    assert float(history.model[1].weight.detach()) == pytest.approx(10, abs=0.2)
    assert lines(tmp_path / "run")[0]["test_accuracy"] is None
    assert "test loss" in write(tmp_path / "run").read_text()


def test_a_loss_must_fit_the_records():
    with pytest.raises(ValueError, match="these records have numbers; need one of squared, absolute, hill, valley"):
        assemble_job(make_settings(LINE, {"loss": "cross-entropy"}), lambda text: None)
    with pytest.raises(ValueError, match="these records have classes; need one of cross-entropy"):
        assemble_job(make_settings("spiral", {"loss": "squared"}), lambda text: None)
    with pytest.raises(ValueError, match="these records have no classes"):
        assemble_job(make_settings(LINE, {"diagnose": "classes"}), lambda text: None)


@pytest.mark.parametrize(("loss", "rate", "goal"), [("valley", 0.03, (4.0, 1.0)), ("hill", 0.5, (4.0, 0.0))])
def test_a_point_finds_the_bottom_of_a_landscape(loss, rate, goal, tmp_path):
    given = {"dataset": "cloud", "model": "point", "loss": loss, "learning_rate": rate, "steps": 200}
    history = sordino.fit(LINE, out=tmp_path / "run", sampler="full", **given)
    where = history.model.theta.detach().tolist()
    assert math.dist(where, goal) < 0.35


def test_losses_are_one_number_per_record():
    x, y = torch.randn(5, 2), torch.randn(5, 2)
    for name, loss in LOSSES.items():
        scores, target = x, torch.zeros(5, dtype=torch.long) if loss.classifies else y
        # Of tokens there are scores of every token at every place.
        if name == "tokens":
            scores, target = torch.randn(5, 3, 4), torch.randint(0, 4, (5, 3))
        assert loss.losses_of(nn.Identity(), scores, target).shape == (5,), name
