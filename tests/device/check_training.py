"""Training on a device from the first draw to the claim, for models with and without dropout."""

import random
from contextlib import nullcontext

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.ledger.claims import Guarantee
from sordino.per_sample import Captured
from sordino.rng.global_generators import GlobalState, Seeded, draw_next, seed_all
from sordino.runtime_checks.double_precision import DoublePrecision
from tests.device.simulated import move, start
from tests.device.zoo import ZOO, classify

sim = start()


def train(model, data, loss_fn, *, steps=4, seed=1, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), seed=seed, **options)
    for lot in private.draws(data, sd.Poisson(0.1), steps=steps):
        optimizer.zero_grad()
        private.backward(lot)
        optimizer.step()
    return private


@pytest.mark.parametrize(
    "name",
    ["mlp_dropout", "mlp_bf16", "cnn_dropout", "lstm_dropout", "gpt2_dropout", "vit_dropout", "leaf_with_dropout"],
)
def test_a_model_with_dropout_trains_and_has_a_claim(name):
    torch.manual_seed(0)
    model, data, loss_fn = ZOO[name]()
    claim = train(move(model), data, loss_fn).claim(1e-5)
    assert isinstance(claim, Guarantee), str(claim)


def test_isolated_records_draw_from_seeds_of_their_own_on_the_device():
    torch.manual_seed(0)
    model, data, loss_fn = ZOO["mlp_dropout"]()
    before = torch.sim.get_rng_state()
    claim = train(move(model), data, loss_fn, steps=2, isolate=True).claim(1e-5)
    assert isinstance(claim, Guarantee)
    assert torch.equal(before, torch.sim.get_rng_state())


def test_training_leaves_every_generator_as_it_was():
    torch.manual_seed(0)
    model, data, loss_fn = ZOO["mlp_dropout"]()
    move(model)
    before = GlobalState.capture()
    train(model, data, loss_fn, steps=2)
    assert GlobalState.capture().equals(before)


def test_all_generators_are_seeded_and_put_back_together():
    seed_all(7)
    first = draw_next()
    drawn = [torch.rand(2, device=device).tolist() for device in ("cpu", "sim:0", "sim:1")]
    state = GlobalState.capture()
    later = (
        [torch.rand(2, device=device).tolist() for device in ("cpu", "sim:0", "sim:1")],
        np.random.rand(),
        random.random(),
    )
    assert not GlobalState.capture().equals(state)
    state.restore()
    again = (
        [torch.rand(2, device=device).tolist() for device in ("cpu", "sim:0", "sim:1")],
        np.random.rand(),
        random.random(),
    )
    assert later == again
    seed_all(7)
    assert draw_next() == first
    assert [torch.rand(2, device=device).tolist() for device in ("cpu", "sim:0", "sim:1")] == drawn


def test_what_is_drawn_on_the_device_shows_in_the_next_draws():
    seed_all(7)
    untouched = draw_next()
    seed_all(7)
    torch.rand(1, device="sim:1")
    touched = draw_next()
    assert touched != untouched
    assert touched[1:] == untouched[1:]


def coupled(model, x, y):
    """Divides by a statistic of the batch, which couples its records."""
    return F.cross_entropy(model(x - x.mean(0)), y, reduction="none")


def test_coupled_records_are_found_on_the_device():
    torch.manual_seed(0)
    model, data, _ = ZOO["mlp_dropout"]()
    with pytest.raises(sd.Refusal):
        train(move(model), data, coupled)


class _CoupledLater(nn.Module):
    """Couples the records of a batch from its fourth training pass on a real lot, beyond the first look."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(20, 16), nn.ReLU(), nn.Dropout(0.2), nn.Linear(16, 2))

    def forward(self, x):
        if self.layers[0].weight.abs().sum() > 0 and x.shape[0] > 20:
            x = x - x.mean(0)
        return self.layers(x)


def test_a_coupling_at_training_size_is_found_on_the_device():
    torch.manual_seed(0)
    _, data, _ = ZOO["mlp_dropout"]()
    with pytest.raises(sd.Refusal):
        train(move(_CoupledLater()), data, classify, steps=6)


def test_rounding_that_depends_on_the_shape_of_the_batch_is_no_coupling():
    with sim.switches(round_by_shape=True):
        for seed in range(3):
            torch.manual_seed(seed)
            model, data, loss_fn = ZOO["mlp_dropout"]()
            claim = train(move(model), data, loss_fn, seed=seed).claim(1e-5)
            assert isinstance(claim, Guarantee), str(claim)


def test_a_forward_pass_draws_by_its_seed_on_the_device_and_not_by_where_the_generator_stood():
    with Seeded(1):
        first = torch.rand(4, device="sim")
    with Seeded(2):
        other = torch.rand(4, device="sim")
    torch.rand(3, device="sim")
    with Seeded(1):
        again = torch.rand(4, device="sim")
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_the_second_look_in_float64_answers_on_the_device():
    """It answers None where the user's code cannot be computed in float64: an error of ours must not look like that."""
    torch.manual_seed(0)
    model, data, _ = ZOO["mlp_dropout"]()
    move(model).eval()
    batch = tuple(column[:6].to("sim") for column in data.tensors)
    second_look = DoublePrecision(model, lambda twin, batch: Captured().per_sample(twin, classify, batch))
    watched = torch.ones(6, dtype=torch.bool)
    assert second_look.rounding_explains(lambda: batch, lambda: batch, watched, nullcontext) is True
    other = (batch[0] * 2, batch[1])
    assert second_look.rounding_explains(lambda: batch, lambda: other, watched, nullcontext) is False
    single = tuple(column[2:3] for column in batch)
    assert second_look.rounding_explains_alone(lambda: batch, 2, lambda: single, nullcontext) is True


def test_a_classifier_that_is_sure_is_not_accused_of_its_rounding():
    """Gradients p − y of records that are fitted are little but rounding: float64 must explain them, on the device."""
    torch.manual_seed(0)
    x = torch.randn(200, 20)
    y = (x[:, 0] > 0).long()
    model = nn.Linear(20, 2)
    with torch.no_grad():
        model.weight.zero_()
        model.weight[1, 0], model.weight[0, 0] = 400.0, -400.0
    with sim.switches(round_by_shape=True):
        claim = train(move(model), TensorDataset(x, y), classify, steps=6).claim(1e-5)
    assert isinstance(claim, Guarantee), str(claim)
