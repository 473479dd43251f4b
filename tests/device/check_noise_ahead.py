"""Noise that is made ahead for a device: the bits of the CPU, and no noise twice, whatever comes between two draws."""

import copy
import os
import pickle

import pytest
import torch

import sordino as sd
from sordino.release.noise import Gaussian
from sordino.rng.streams import Rng
from tests.device.simulated import move, start
from tests.device.zoo import ZOO

sim = start()
SIZES = [(3, 5), (700, 41), (1,)]


def add_noise(rng, device, scale=1.5, shapes=SIZES):
    """Returns one draw of noise, as a release adds it."""
    value = {str(k): torch.zeros(shape, device=device) for k, shape in enumerate(shapes)}
    Gaussian(1.0).add_(value, scale, rng)
    return torch.cat([tensor.cpu().flatten() for tensor in value.values()])


def test_draws_made_ahead_have_the_bits_of_the_cpu():
    here, there = Rng.from_seed(3), Rng.from_seed(3)
    for _ in range(5):
        assert torch.equal(add_noise(here, "cpu"), add_noise(there, "sim"))
    assert there._prepared.taken == 4  # all but the first
    assert here.counter == there.counter == 5


def test_other_draws_between_them_are_foreseen_once_they_repeat():
    """A tally that a clipping rule releases at every step is another draw of the same stream."""
    here, there = Rng.from_seed(4), Rng.from_seed(4)
    for _ in range(6):
        assert torch.equal(add_noise(here, "cpu"), add_noise(there, "sim"))
        assert here.words(3).tolist() == there.words(3).tolist()
    assert there._prepared.taken == 4  # not the first, and not the second, whose number was guessed wrong


@pytest.mark.parametrize("change", ["scale", "length", "another draw"])
def test_what_was_made_for_another_draw_is_thrown_away(change):
    here, there = Rng.from_seed(5), Rng.from_seed(5)
    add_noise(here, "cpu"), add_noise(there, "sim")
    scale, shapes = (2.5 if change == "scale" else 1.5), (SIZES[:2] if change == "length" else SIZES)
    if change == "another draw":
        here.seed(), there.seed()
    assert torch.equal(add_noise(here, "cpu", scale, shapes), add_noise(there, "sim", scale, shapes))
    assert there._prepared.taken == 0


def test_values_are_handed_out_once_and_a_state_holds_none_of_them():
    rng = Rng.from_seed(6)
    first = add_noise(rng, "sim")
    # A state is saved while the second draw lies ready; its counter says that it was not drawn.
    state = rng.state_dict()
    assert state["counter"] == 1
    second, third = add_noise(rng, "sim"), add_noise(rng, "sim")
    assert not torch.equal(first, second)
    assert not torch.equal(second, third)
    # The replayed stream makes the draw again, by itself.
    replayed = Rng.replay(state)
    assert torch.equal(add_noise(replayed, "sim"), second)
    assert replayed._prepared.taken == 0


def test_copies_and_pickles_have_other_noise():
    rng = Rng.from_seed(7)
    add_noise(rng, "sim")
    others = [copy.copy(rng), copy.deepcopy(rng), pickle.loads(pickle.dumps(rng))]
    expected = add_noise(rng, "sim")
    assert not any(torch.equal(add_noise(other, "sim"), expected) for other in others)


def test_a_forked_process_throws_away_what_its_parent_made_ahead():
    rng = Rng.from_seed(8)
    add_noise(rng, "sim")
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        values = rng.make_normals_for_copy(sum(torch.Size(s).numel() for s in SIZES), 1.5, torch.zeros)
        os.write(writing, values[:64].numpy().tobytes())
        os._exit(0)
    os.waitpid(child, 0)
    of_child = torch.frombuffer(bytearray(os.read(reading, 256)), dtype=torch.float32)
    assert len(of_child) == 64
    assert not torch.equal(add_noise(rng, "sim")[:64], of_child)


class _Interrupted(Exception):
    pass


def train(device, fails_at=None):
    """Returns the parameters after five steps; at `fails_at` the loss raises, and the lot is used again without it."""
    torch.manual_seed(0)
    model, data, plain_loss = ZOO["mlp"]()
    model = move(model) if device == "sim" else model
    state = {"step": None}

    def loss_fn(model, x, y):
        if state["step"] == fails_at and fails_at is not None:
            state["step"] = None
            raise _Interrupted
        return plain_loss(model, x, y)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=2)
    for lot in private.draws(data, sd.Poisson(0.1), steps=5):
        state["step"] = lot.step
        optimizer.zero_grad()
        try:
            private.backward(lot)
        except _Interrupted:
            continue
        optimizer.step()
    parameters = torch.nn.utils.parameters_to_vector(model.parameters()).detach().cpu()
    return parameters, private._noise


@pytest.mark.parametrize("fails_at", [None, 2])
def test_a_run_with_an_exception_between_has_the_noise_of_the_cpu(fails_at):
    here, _ = train("cpu", fails_at)
    there, stream = train("sim", fails_at)
    assert torch.allclose(here, there, atol=1e-5)
    assert stream._prepared.taken >= 2
