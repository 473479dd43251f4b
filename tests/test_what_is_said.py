"""What a claim says of the user's loop: lots that no step used, heads that would never train, what it rests on."""

import json

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.ledger.claims import Guarantee, NoGuarantee
from sordino.refusal import Refusal
from tests.problems import linear, network, private

UNUSED = "no optimizer step used"


def said(run) -> str:
    claim = run.claim(1e-5)
    assert isinstance(claim, Guarantee)
    return str(claim)


def sgd(run, *more):
    return torch.optim.SGD([*run._model.parameters(), *more], lr=0.1)


def test_gradient_accumulation_by_hand_is_told_with_the_claim():
    run = private()
    optimizer = sgd(run)
    for lot in run.draws(linear(), sd.Poisson(0.3), steps=12):
        run.backward(lot)
        if lot.step % 4 == 3:
            optimizer.step()
    assert "9 of 12 lots were drawn and charged, and no optimizer step used them" in said(run)


def test_a_step_for_every_lot_is_not_worth_a_word():
    run = private()
    optimizer = sgd(run)
    for lot in run.draws(linear(), sd.Poisson(0.3), steps=6):
        run.backward(lot)
        assert UNUSED not in said(run)  # it waits for its step
        optimizer.step()
    assert UNUSED not in said(run)


def test_a_lot_that_was_skipped_and_a_last_one_without_a_step_are_counted():
    run = private()
    optimizer = sgd(run)
    for lot in run.draws(linear(), sd.Poisson(0.3), steps=6):
        if lot.step == 2:
            continue
        run.backward(lot)
        if lot.step < 5:
            optimizer.step()
    assert "2 of 6 lots were drawn" in said(run)


def test_a_step_after_the_gradients_were_dropped_uses_nothing():
    run = private()
    optimizer = sgd(run)
    for lot in run.draws(linear(), sd.Poisson(0.3), steps=3):
        run.backward(lot)
        optimizer.zero_grad()
        optimizer.step()
    assert "3 of 3 lots were drawn" in said(run)


def test_a_step_by_hand_on_released_gradients_is_a_use():
    run = private()
    for lot in run.draws(linear(), sd.Poisson(0.3), steps=3):
        run.backward(lot)
        with run.post_processing("a step by hand"), torch.no_grad():
            for p in run._model.parameters():
                p -= 0.1 * p.grad
    assert UNUSED not in said(run)


def test_the_count_goes_on_from_a_saved_state():
    run = private()
    for lot in run.draws(linear(), sd.Poisson(0.3), steps=3):
        run.backward(lot)
    other = private()
    other.load_state_dict(json.loads(json.dumps(run.state_dict())))
    optimizer = sgd(other)
    for lot in other.draws(linear(), sd.Poisson(0.3), steps=2):
        other.backward(lot)
        optimizer.step()
    assert "3 of 5 lots were drawn" in said(other)


def test_a_head_beside_the_model_is_refused_at_its_first_step():
    run, head = private(), nn.Linear(3, 2)
    optimizer = sgd(run, *head.parameters())
    lot = next(draws := run.draws(linear(), sd.Poisson(0.3), steps=3))
    run.backward(lot)
    with pytest.raises(
        Refusal, match=r"(?s)shape \(2, 3\).*would never train.*Make one module of both and give that to"
    ):
        optimizer.step()
    draws.close()


def test_a_head_beside_the_model_with_gradients_of_its_own_voids_the_claim():
    run, head = private(), nn.Linear(3, 2)
    optimizer = sgd(run, *head.parameters())
    for lot in run.draws(linear(), sd.Poisson(0.3), steps=2):
        run.backward(lot)
        head(torch.ones(1, 3)).sum().backward()
        optimizer.step()
    claim = run.claim(1e-5)
    assert isinstance(claim, NoGuarantee)
    assert "not of the model given to Private" in claim.reason


def test_what_is_frozen_or_was_the_models_once_may_stay_in_the_optimizer():
    run = private()
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    optimizer = sgd(run, frozen)
    for lot in run.draws(linear(), sd.Poisson(0.3), steps=2):
        run.backward(lot)
        optimizer.step()
    assert UNUSED not in said(run)


def test_an_optimizer_of_two_runs_is_fine():
    """Two models, two runs, one optimizer over both."""
    one, two = private(), private(network())
    optimizer = sgd(one, *two._model.parameters())
    for a, b in zip(
        one.draws(linear(), sd.Poisson(0.3), steps=2), two.draws(linear(), sd.Poisson(0.3), steps=2), strict=True
    ):
        one.backward(a)
        two.backward(b)
        optimizer.step()
    assert UNUSED not in said(one)
    assert UNUSED not in said(two)
