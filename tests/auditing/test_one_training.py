"""A one-run audit is below its claim for a right run, and contradicts it where noise or clip is missing."""

import numpy as np
import pytest

import sordino as sd
from sordino.app.audits.one_run_audit import CanaryMeasurement, ClaimedCurves, OneRunAudit, audit_one_run
from sordino.app.runs.job import assemble_job
from sordino.app.runs.problem import cross_entropy
from sordino.app.runs.settings import make_settings
from sordino.auditing import guesses
from sordino.auditing.canaries import ModelWithCanaryNumbers, make_canaries, make_canary_loss
from sordino.clipping import clipping_rule
from sordino.rng.streams import Rng


@pytest.fixture(scope="module")
def job():
    given = {"epsilon": 1.0, "steps": 20, "rate": 0.3, "records": 300}
    return assemble_job(make_settings("spiral", given), lambda _: None)


@pytest.fixture(scope="module")
def claimed(job):
    event, delta = job.event(), job.settings.recipe.delta
    return ClaimedCurves.from_event(event, sd.accounting.PLD().epsilon(event, delta), delta)


def test_a_right_run_is_not_contradicted(job, claimed):
    """At 5 % split over four measurements; the seed is the first one."""
    audited = audit_one_run(job, 200, ("gradient", "noise", "mislabelled"), claimed=claimed, seed=0)
    assert audited.passed
    assert audited.epsilon == pytest.approx(1.0, abs=1e-3)
    assert [m.access for m in audited.measured] == ["white box", "white box", "black box", "white box", "black box"]
    assert "no proof" in str(audited)


def test_a_run_without_noise_is_contradicted(job, claimed):
    silent = sd.NoisySum(sd.Flat(job.settings.recipe.bound), sd.Gaussian(0.0))
    audited = audit_one_run(job, 200, ("gradient",), claimed=claimed, query=silent, seed=0)
    assert not audited.passed
    assert audited.measured[0].lower_own > audited.epsilon
    assert "CONTRADICTED" in str(audited)


def test_a_long_clip_is_contradicted(job, claimed, monkeypatch):
    right = clipping_rule.bound_weights
    monkeypatch.setattr(clipping_rule, "bound_weights", lambda *given: 12 * right(*given))
    audited = audit_one_run(job, 200, ("gradient",), claimed=claimed, seed=0)
    assert not audited.passed


def test_coins_are_fair_and_of_their_own(job):
    prepared = job.data
    some = make_canaries(("gradient", "noise"), 2000, prepared.test, prepared.classes, Rng.from_seed(1))
    heads = int(some.inside.sum())
    assert abs(heads - 2000) < 5 * 1000**0.5
    assert len(some.add_to_dataset(prepared.train)) == len(prepared.train) + heads
    assert sorted(some.places_of("noise")) == list(range(2000, 4000))


def test_a_gradient_canary_moves_its_own_number_and_nothing_else(job):
    import torch

    model = ModelWithCanaryNumbers(job.problem.model, 3)
    loss = make_canary_loss(cross_entropy)
    x, y = (t[:2] for t in job.data.train.tensors)
    loss(model, x, y, torch.tensor([1, 3])).sum().backward()
    assert model.numbers.weight.grad.reshape(-1).tolist() == [0.0, 1000.0, 0.0, 0.0]


def test_a_mislabelled_canary_has_another_class(job):
    prepared = job.data
    some = make_canaries(("mislabelled",), 100, prepared.test, prepared.classes, Rng.from_seed(2))
    own = {tuple(x.tolist()): int(y) for x, y in zip(*prepared.test.tensors, strict=True)}
    assert all(own[tuple(x.tolist())] != int(y) for x, y in zip(some.x, some.y, strict=True))


def test_guesses_are_fixed_by_the_claim_alone():
    assert guesses.best_number_of_guesses(500, 1.0) == guesses.best_number_of_guesses(500, 1.0)
    with pytest.raises(ValueError, match="each=300"):
        guesses.count_right_guesses(np.zeros(500), np.zeros(500, dtype=bool), 300)


def test_the_chance_of_an_error_is_split_over_what_was_measured():
    one = CanaryMeasurement("noise", "black box", 100, 20, 16, 0.1, 0.2, 0.03, 0.5)
    assert not OneRunAudit(1.0, 1e-5, 0.3, 10, (one,)).passed
    assert OneRunAudit(1.0, 1e-5, 0.3, 10, (one, one)).passed
