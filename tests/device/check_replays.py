"""Replays on a device: allowed only where sums have a fixed order, and then bit by bit; refused otherwise."""

import copy

import pytest
import torch

import sordino as sd
from sordino.environment import current_environment, find_nondeterminism
from tests.device.simulated import move, start
from tests.device.zoo import ZOO

sim = start()


@pytest.fixture
def deterministic():
    torch.use_deterministic_algorithms(True)
    yield
    torch.use_deterministic_algorithms(False)


def make_run(name="lstm_dropout"):
    torch.manual_seed(0)
    model, data, loss_fn = ZOO[name]()
    move(model)
    return model, data, sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))


def release_steps(run, model, data, steps=2):
    """Takes some steps and returns the bits of what they released."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    found = []
    for lot in run.draws(data, sd.Poisson(0.1), steps=steps):
        optimizer.zero_grad()
        run.backward(lot)
        found.append(b"".join(p.grad.cpu().numpy().tobytes() for p in model.parameters()))
        optimizer.step()
    return found


def save(run, model):
    secret = run.secret_state()
    return secret, run.state_dict(), copy.deepcopy(model.state_dict())


def replay(saved):
    secret, state, weights = saved
    model, data, run = make_run()
    model.load_state_dict(weights)
    run.load_state_dict(state, replay=sd.Replay("nothing else was released", secret=secret))
    return model, data, run


def test_a_replay_under_deterministic_algorithms_gives_the_same_bits(deterministic):
    with sim.switches(unordered=True):
        model, data, run = make_run()
        saved = save(run, model)
        first = release_steps(run, model, data)
        for _ in range(2):
            again, data, replayed = replay(saved)
            assert release_steps(replayed, again, data) == first


def test_a_replay_without_deterministic_algorithms_is_refused():
    model, _, run = make_run()
    saved = save(run, model)
    with pytest.raises(sd.Refusal, match="sums on sim:0 have no fixed order"):
        replay(saved)


def test_a_state_saved_without_deterministic_algorithms_is_not_replayed_under_them():
    model, _, run = make_run()
    saved = save(run, model)
    torch.use_deterministic_algorithms(True)
    try:
        with pytest.raises(sd.Refusal, match="deterministic was algorithms off"):
            replay(saved)
    finally:
        torch.use_deterministic_algorithms(False)


def test_a_replay_with_other_switches_of_precision_is_refused(deterministic):
    model, _, run = make_run()
    saved = save(run, model)
    torch.backends.cuda.matmul.allow_tf32 = True
    try:
        with pytest.raises(sd.Refusal, match="precision was"):
            replay(saved)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = False


def test_without_a_replay_the_state_goes_on_with_a_new_key():
    model, data, run = make_run()
    _, state, weights = save(run, model)
    model, data, run = make_run()
    model.load_state_dict(weights)
    run.load_state_dict(state)
    assert len(release_steps(run, model, data)) == 2


def test_the_environment_names_the_device_and_the_cpu_needs_no_order():
    assert current_environment()["device"] == "sim"
    assert find_nondeterminism(torch.device("cpu")) == ""
    assert "warn" not in find_nondeterminism(torch.device("sim"))
