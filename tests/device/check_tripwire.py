"""Writes to parameters on a device that torch does not count: noticed before the next lot, or by the claim."""

import pytest
import torch

import sordino as sd
from tests.device.simulated import move, start
from tests.device.zoo import ZOO

sim = start()
STEPS, AT = 6, 3


def train(write_at=None, write=None, undo_at=None, steps=STEPS, name="mlp"):
    """Trains some steps and returns the claim; `write` changes parameters through `.data` at a moment of one step.

    The moments: "backward" and "step" are just before these calls, "draw" is behind the step.
    """
    torch.manual_seed(0)
    model, data, loss_fn = ZOO[name]()
    parameters = list(move(model).parameters())
    kept = [None]
    optimizer = torch.optim.SGD(parameters, lr=0.05)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))

    def act(moment, step):
        if step == AT and moment == write_at:
            kept[0] = [p.data.clone() for p in parameters]
            versions = [p._version for p in parameters]
            write(parameters)
            assert versions == [p._version for p in parameters], "such a write moves no version"
        if step == AT and moment == undo_at:
            for p, before in zip(parameters, kept[0], strict=True):
                p.data.copy_(before)

    for lot in private.draws(data, sd.Poisson(0.1), steps=steps):
        optimizer.zero_grad()
        act("backward", lot.step)
        private.backward(lot)
        act("step", lot.step)
        optimizer.step()
        act("draw", lot.step)
    return str(private.claim(1e-5))


def add_to_all(parameters):
    for p in parameters:
        p.data.add_(0.01)


def add_to_one(parameters):
    parameters[0].data.mul_(1.5)


def copy_over_bias(parameters):
    parameters[-1].data.copy_(torch.ones_like(parameters[-1]))


@pytest.mark.parametrize("steps", [STEPS, AT + 1], ids=["a lot follows", "a claim follows"])
@pytest.mark.parametrize("moment", ["backward", "step", "draw"])
@pytest.mark.parametrize("write", [add_to_all, add_to_one, copy_over_bias], ids=lambda f: f.__name__)
def test_a_write_through_data_voids_the_claim(write, moment, steps):
    claim = train(moment, write, steps=steps)
    assert "no privacy guarantee" in claim.lower()
    assert "was changed other than by an optimizer step" in claim


@pytest.mark.parametrize(("write_at", "undo_at"), [("backward", "step"), ("backward", "draw"), ("step", "draw")])
def test_a_write_that_is_undone_before_the_next_lot_voids_it_too(write_at, undo_at):
    assert "no privacy guarantee" in train(write_at, add_to_all, undo_at).lower()


@pytest.mark.parametrize("name", ["mlp", "cnn_dropout"])
def test_a_run_without_such_writes_keeps_its_claim(name):
    assert "differential privacy" in train(name=name)


def test_a_write_inside_post_processing_is_allowed():
    torch.manual_seed(0)
    model, data, loss_fn = ZOO["mlp"]()
    optimizer = torch.optim.SGD(move(model).parameters(), lr=0.05)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    for lot in private.draws(data, sd.Poisson(0.1), steps=4):
        optimizer.zero_grad()
        private.backward(lot)
        optimizer.step()
        with private.post_processing("weights are shrunk"):
            for p in model.parameters():
                p.data.mul_(0.99)
    assert "differential privacy" in str(private.claim(1e-5))
