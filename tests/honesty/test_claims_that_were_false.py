"""Claims that were printed and were false: what happens after the loop, between claims, beside a run and before it."""

import copy
import gc

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.ledger.claims import COPIED, TRAINED_BEFORE, WRITTEN_BEFORE
from sordino.ledger.lot_counts import LotCounts, describe_counts
from tests.honesty.data import cross_entropy, network, vectors

QUERY = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
DELTA = 1e-5


def train(private, optimizer, data, steps=10):
    """The loop of the README."""
    for lot in private.draws(data, sd.Poisson(0.2), steps=steps, expected_batch=13):
        private.backward(lot)
        optimizer.step()


def step_by_hand(model, data):
    """One step of plain gradient descent on all records, written without an optimizer."""
    loss = cross_entropy(model, *data.tensors).mean()
    found = torch.autograd.grad(loss, list(model.parameters()))
    with torch.no_grad():
        for p, g in zip(model.parameters(), found, strict=True):
            p -= 0.1 * g


def begun(ledger=None, **options):
    model, data = network(), vectors(0)
    private = sd.Private(model, cross_entropy, QUERY, ledger=ledger, **options)
    return model, data, private, torch.optim.SGD(model.parameters(), lr=0.05)


def test_steps_by_hand_after_the_loop_are_seen_by_the_ledger_s_claim():
    ledger = sd.Ledger()
    model, data, private, optimizer = begun(ledger)
    train(private, optimizer, data)
    assert isinstance(ledger.claim(DELTA), sd.Guarantee)
    step_by_hand(model, data)
    assert isinstance(ledger.claim(DELTA), sd.NoGuarantee)


def test_steps_by_hand_after_the_run_is_gone_are_seen_too():
    ledger = sd.Ledger()
    model, data, private, optimizer = begun(ledger)
    train(private, optimizer, data)
    del private
    gc.collect()
    assert isinstance(ledger.claim(DELTA), sd.Guarantee)
    step_by_hand(model, data)
    said = ledger.claim(DELTA)
    assert isinstance(said, sd.NoGuarantee)
    assert "after the run" in said.reason


def test_a_second_run_takes_over_what_the_first_left_behind():
    ledger = sd.Ledger()
    model, data, private, optimizer = begun(ledger)
    train(private, optimizer, data)
    del private
    gc.collect()
    train(sd.Private(model, cross_entropy, QUERY, ledger=ledger), optimizer, data)
    gc.collect()
    assert isinstance(ledger.claim(DELTA), sd.Guarantee)


def test_the_claim_of_one_run_looks_at_the_others_of_its_ledger():
    ledger = sd.Ledger()
    first = begun(ledger)
    second = begun(ledger)
    for _, data, private, optimizer in (first, second):
        train(private, optimizer, data)
    step_by_hand(first[0], first[1])
    assert isinstance(second[2].claim(DELTA), sd.NoGuarantee)


class CoupledFrom:
    """A loss that divides by the batch's largest loss from some lot on."""

    def __init__(self):
        self.coupled = False

    def __call__(self, model, x, y):
        losses = cross_entropy(model, x, y)
        return losses / losses.max() if self.coupled and len(losses) > 1 else losses


def ends_coupled(seed, *, claims_at_every_lot, steps=60, coupled_from=50):
    loss = CoupledFrom()
    model, data = network(), vectors(seed)
    private = sd.Private(model, loss, QUERY, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for k, lot in enumerate(private.draws(data, sd.Poisson(0.2), steps=steps, expected_batch=13)):
        loss.coupled = k >= coupled_from
        private.backward(lot)
        optimizer.step()
        if claims_at_every_lot:
            said = private.claim(DELTA)
    return said if claims_at_every_lot else private.claim(DELTA)


@pytest.mark.parametrize("seed", range(3))
def test_the_end_is_tested_however_often_a_claim_was_asked_for(seed):
    assert isinstance(ends_coupled(seed, claims_at_every_lot=True), sd.NoGuarantee)


def test_a_claim_says_how_many_lots_came_after_the_last_test():
    counts = LotCounts(drawn=200, tested=9, untested=7)
    assert any("last 7" in line for line in describe_counts([counts]))


def epsilon_of(steps):
    event = sd.events.Repeat(sd.events.Poisson(0.2, sd.events.Gaussian(1.0)), steps)
    return sd.accounting.PLD().epsilon(event, DELTA)


def test_two_runs_made_on_one_model_before_the_first_step_have_one_ledger():
    model, data = network(), vectors(0)
    privates = [sd.Private(model, cross_entropy, QUERY) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for private in privates:
        train(private, optimizer, TensorDataset(*(column.clone() for column in data.tensors)), 20)
    for private in privates:
        assert private.claim(DELTA).epsilon == pytest.approx(epsilon_of(40), abs=1e-3)


def test_two_runs_on_one_model_with_ledgers_of_their_own_name_each_other():
    model, data = network(), vectors(0)
    privates = [sd.Private(model, cross_entropy, QUERY, ledger=sd.Ledger()) for _ in range(2)]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for private in privates:
        train(private, optimizer, TensorDataset(*(column.clone() for column in data.tensors)))
    for private in privates:
        assert TRAINED_BEFORE in private.claim(DELTA).not_covered


def by_state_dict(model):
    made = network()
    made.load_state_dict({name: tensor.clone() for name, tensor in model.state_dict().items()})
    return made


@pytest.mark.parametrize("copied", [by_state_dict, copy.deepcopy])
@pytest.mark.parametrize("gone", [False, True], ids=["with the first run", "after the first run is gone"])
def test_a_second_stage_from_a_copy_of_the_weights_is_named(copied, gone):
    model, data, private, optimizer = begun()
    train(private, optimizer, data)
    second = copied(model)
    if gone:
        del model, private, optimizer
        gc.collect()
    private = sd.Private(second, cross_entropy, QUERY)
    train(private, torch.optim.SGD(second.parameters(), lr=0.05), vectors(1))
    assert COPIED in private.claim(DELTA).not_covered


def test_a_checkpoint_from_the_middle_of_a_run_is_known_again():
    model, data, private, optimizer = begun()
    for k, lot in enumerate(private.draws(data, sd.Poisson(0.2), steps=10, expected_batch=13)):
        private.backward(lot)
        optimizer.step()
        if k == 4:
            middle = by_state_dict(model)
    private = sd.Private(middle, cross_entropy, QUERY)
    train(private, torch.optim.SGD(middle.parameters(), lr=0.05), vectors(1))
    assert COPIED in private.claim(DELTA).not_covered


def test_two_models_that_begin_at_the_same_public_weights_are_not_related():
    model = network()
    second = copy.deepcopy(model)
    for one, seed in ((model, 0), (second, 1)):
        private = sd.Private(one, cross_entropy, QUERY)
        train(private, torch.optim.SGD(one.parameters(), lr=0.05), vectors(seed))
        assert COPIED not in private.claim(DELTA).not_covered


def warmed_up(model, data, steps=30):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        optimizer.zero_grad()
        cross_entropy(model, *data.tensors).mean().backward()
        optimizer.step()


def test_a_warm_start_without_privacy_is_named():
    model, data = network(), vectors(0)
    warmed_up(model, data)
    model.zero_grad()
    private = sd.Private(model, cross_entropy, QUERY)
    train(private, torch.optim.SGD(model.parameters(), lr=0.05), data)
    assert WRITTEN_BEFORE in private.claim(DELTA).not_covered


def test_a_warm_start_that_was_declared_is_named_once():
    model, data = network(), vectors(0)
    private = sd.Private(model, cross_entropy, QUERY)
    with private.public("another hospital"):
        warmed_up(model, vectors(1))
    train(private, torch.optim.SGD(model.parameters(), lr=0.05), data)
    named = private.claim(DELTA).not_covered
    assert WRITTEN_BEFORE not in named
    assert any("another hospital" in what for what in named)


def test_a_second_run_of_the_same_ledger_names_no_past():
    ledger = sd.Ledger()
    model, data, private, optimizer = begun(ledger)
    train(private, optimizer, data, 20)
    again = sd.Private(model, cross_entropy, QUERY, ledger=ledger)
    train(again, optimizer, data, 20)
    assert not {COPIED, TRAINED_BEFORE, WRITTEN_BEFORE} & set(again.claim(DELTA).not_covered)


@pytest.mark.parametrize("seed", range(3))
def test_epsilon_does_not_go_on_in_a_log_over_a_run_that_became_coupled(seed):
    """Coupled from lot 40 on: at lot 80 at the latest nothing is logged any more."""
    loss, logged = CoupledFrom(), []
    model, data = network(), vectors(seed)
    private = sd.Private(model, loss, QUERY, seed=seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    log = sd.Log(lambda values, step: logged.append((step, "privacy/epsilon" in values)), every=1)
    for k, lot in enumerate(private.draws(data, sd.Poisson(0.2), steps=80, expected_batch=13)):
        loss.coupled = k >= 40
        private.backward(lot)
        log.step(private, optimizer, delta=DELTA)
        optimizer.step()
    assert logged[10][1]
    assert not any(shown for step, shown in logged if step >= 65)


def test_epsilon_is_not_logged_after_a_write_by_hand_that_nothing_else_has_seen_yet():
    model, data, private, optimizer = begun()
    train(private, optimizer, data)
    assert private.spent_epsilon(DELTA) is not None
    step_by_hand(model, data)
    assert private.spent_epsilon(DELTA) is None
