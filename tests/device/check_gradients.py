"""Per-sample gradients on a device: equal to autograd's there, with the same dropout, and to the CPU's."""

import copy

import pytest
import torch

from sordino.per_sample import Captured
from sordino.per_sample.protocol import trainable_parameters
from sordino.rng.global_generators import Seeded
from tests.device.simulated import move, start
from tests.device.zoo import ZOO

start()

BATCH = 6


def weighted_sum_by_engine(model, loss_fn, batch, weights):
    with Seeded(3):
        part = Captured().per_sample(model, loss_fn, batch)
        total = part.weighted_sum(weights[:, None])
        return {name: tensor.clone() for name, tensor in total.items()}, part.norms().total()


def gradients_by_autograd(model, loss_fn, batch):
    """Returns every sample's own gradient, from one forward pass with the seed that the engine has."""
    parameters = trainable_parameters(model)
    with Seeded(3):
        losses = loss_fn(model, *batch)
    rows = [torch.autograd.grad(loss, list(parameters.values()), retain_graph=True) for loss in losses]
    return {name: torch.stack([row[k] for row in rows]).float() for k, name in enumerate(parameters)}


@pytest.mark.parametrize("name", ZOO)
def test_norms_and_sums_equal_autograds_with_the_same_dropout(name):
    torch.manual_seed(5)
    model, data, loss_fn = ZOO[name]()
    move(model).train()
    batch = tuple(column[:BATCH].to("sim") for column in data.tensors)
    weights = torch.linspace(0.2, 1.0, BATCH, device="sim")
    total, norms = weighted_sum_by_engine(model, loss_fn, batch, weights)
    rows = gradients_by_autograd(model, loss_fn, batch)
    tolerance = 2e-2 if "bf16" in name else 1e-5
    size = max(float(each.abs().max()) for each in rows.values())
    for parameter, each in rows.items():
        true = torch.einsum("b,b...->...", weights, each)
        assert float((total[parameter] - true).abs().max()) <= tolerance * max(size, 1e-3) * BATCH, parameter
    true_norms = torch.stack([each.flatten(1).square().sum(1) for each in rows.values()]).sum(0).sqrt()
    torch.testing.assert_close(norms.cpu().float(), true_norms.cpu(), rtol=max(tolerance, 1e-4), atol=1e-6)


@pytest.mark.parametrize("name", [name for name in ZOO if "dropout" not in name])
def test_norms_and_sums_equal_the_cpus(name):
    torch.manual_seed(5)
    here, data, loss_fn = ZOO[name]()
    there = move(copy.deepcopy(here))
    batch = tuple(column[:BATCH] for column in data.tensors)
    weights = torch.linspace(0.2, 1.0, BATCH)
    on_cpu, cpu_norms = weighted_sum_by_engine(here, loss_fn, batch, weights)
    on_device, norms = weighted_sum_by_engine(there, loss_fn, tuple(x.to("sim") for x in batch), weights.to("sim"))
    tolerance = 1e-2 if "bf16" in name else 1e-5
    for parameter, sum_ in on_cpu.items():
        torch.testing.assert_close(on_device[parameter].cpu(), sum_, rtol=tolerance, atol=tolerance)
    # On a device Gram norms are raised for how its libraries add products: a little higher, never lower.
    ratio = norms.cpu().double() / cpu_norms.double()
    assert float(ratio.min()) >= 1 - tolerance
    assert float(ratio.max()) <= 1 + max(tolerance, 1e-3)


@pytest.mark.parametrize("name", ["mlp_dropout", "cnn_dropout", "gpt2_dropout"])
def test_autocast_on_the_device(name):
    torch.manual_seed(5)
    model, data, loss_fn = ZOO[name]()
    move(model).train()
    batch = tuple(column[:BATCH].to("sim") for column in data.tensors)
    weights = torch.ones(BATCH, device="sim")
    with torch.autocast("sim", dtype=torch.bfloat16):
        total, _ = weighted_sum_by_engine(model, loss_fn, batch, weights)
        rows = gradients_by_autograd(model, loss_fn, batch)
    size = max(float(each.abs().max()) for each in rows.values())
    for parameter, each in rows.items():
        assert float((total[parameter] - each.sum(0)).abs().max()) <= 3e-2 * size * BATCH, parameter
