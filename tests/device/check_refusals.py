"""Models and devices that cannot be trained on are refused by name, before anything is drawn; moved models are followed."""

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.ledger.claims import Guarantee, NoGuarantee
from tests.device.simulated import move, start
from tests.device.zoo import ZOO, classify

sim = start()


def make_private(model, loss_fn=classify, **options):
    return sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=1, **options)


def run(private, model, data, steps=3, between=lambda step: None):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in private.draws(data, sd.Poisson(0.1), steps=steps):
        optimizer.zero_grad()
        private.backward(lot)
        optimizer.step()
        between(lot.step)
    return private.claim(1e-5)


def refusal_of(model, loss_fn=classify):
    """Returns the text of the refusal, which must come before a lot is drawn and charged."""
    private = make_private(model, loss_fn)
    with pytest.raises(sd.Refusal) as refused:
        private.draws(ZOO["mlp"]()[1], sd.Poisson(0.1), steps=3)
    assert str(refused.value).count("\n") <= 2, "a first line, a reason and a cure"
    return str(refused.value)


class _OnTwoDevices(nn.Module):
    def __init__(self, first: str, second: str) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(20, 8).to(first), nn.Linear(8, 2).to(second)

    def forward(self, x):
        return self.two(self.one(x.to(self.one.weight.device)).relu().to(self.two.weight.device))


@pytest.mark.parametrize("places", [("sim:0", "sim:1"), ("cpu", "sim:0")])
def test_a_model_on_two_devices_is_refused(places):
    text = refusal_of(_OnTwoDevices(*places), lambda m, x, y: classify(m, x, y.to(places[1])))
    assert f"'one.weight' is on {places[0]}" in text
    assert places[1] in text


def test_a_frozen_part_on_another_device_is_refused_too():
    model = _OnTwoDevices("sim:1", "sim:0")
    model.one.requires_grad_(False)
    assert "'two.weight' on sim:0" in refusal_of(model, lambda m, x, y: classify(m, x, y.to("sim:0")))


def test_a_model_without_values_is_refused():
    with torch.device("meta"):
        model = nn.Linear(20, 2)
    assert "meta" in refusal_of(model)


def test_a_device_without_float64_is_refused():
    model = move(nn.Linear(20, 2))
    with sim.switches(no_float64=True):
        assert "sim:0 has no float64" in refusal_of(model)


def test_a_device_whose_generator_cannot_be_read_is_refused():
    model = move(nn.Linear(20, 2))
    generators = torch.sim.default_generators
    del torch.sim.default_generators
    try:
        assert "random generator of sim:0" in refusal_of(model)
    finally:
        torch.sim.default_generators = generators


def test_a_model_moved_after_private_and_before_the_first_lot_trains_and_has_a_claim():
    """For this backend `.to` makes new parameter objects; the optimizer is made after it, as PyTorch advises."""
    torch.manual_seed(0)
    model, data, loss_fn = ZOO["mlp_dropout"]()
    private = make_private(model, loss_fn)
    model.to("sim")
    claim = run(private, model, data)
    assert isinstance(claim, Guarantee), str(claim)
    assert {p.device.type for p in model.parameters()} == {"sim"}


@pytest.mark.parametrize(("first", "second"), [("cpu", "sim:0"), ("sim:0", "cpu"), ("sim:0", "sim:1")])
def test_a_model_moved_in_the_middle_of_a_run_voids_the_claim_for_that_reason(first, second):
    """Between two devices of one kind the parameter objects stay, as between the CPU and CUDA."""
    torch.manual_seed(0)
    model, data, loss_fn = ZOO["mlp"]()
    model.to(first)
    claim = run(make_private(model, loss_fn), model, data, between=lambda step: model.to(second) if step == 1 else None)
    assert isinstance(claim, NoGuarantee)
    assert f"was moved from {first} to {second} in the middle of the run" in str(claim)


def test_the_second_device_is_as_good_as_the_first():
    torch.manual_seed(0)
    model, data, loss_fn = ZOO["mlp_dropout"]()
    claim = run(make_private(move(model, "sim:1"), loss_fn), model, data)
    assert isinstance(claim, Guarantee), str(claim)


def test_data_may_be_on_the_device_already():
    torch.manual_seed(0)
    model, data, loss_fn = ZOO["mlp_dropout"]()
    there = TensorDataset(*(column.to("sim") for column in data.tensors))
    claim = run(make_private(move(model), loss_fn), model, there)
    assert isinstance(claim, Guarantee), str(claim)
