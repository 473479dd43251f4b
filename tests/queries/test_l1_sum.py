"""Gradients bounded in L1 as they are, not by way of L2: the formula's sum, and less noise where they are sparse."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.per_sample import Captured, Loop
from sordino.refusal import Refusal
from tests.contracts.hunter import Scripted


def loss(model, x, y):
    return (model(x) - y).square().sum(1)


def records(n=6, d=50, there=3):
    """Of d numbers, all but a few are 0, so most of a gradient is."""
    generator = torch.Generator().manual_seed(0)
    x = torch.zeros(n, d, dtype=torch.float64)
    for row in x:
        row[torch.randperm(d, generator=generator)[:there]] = torch.randn(
            there, generator=generator, dtype=torch.float64
        )
    return x, 3 * torch.randn(n, 1, generator=generator, dtype=torch.float64)


def model(d=50):
    made = torch.nn.Linear(d, 1, bias=False, dtype=torch.float64)
    torch.nn.init.zeros_(made.weight)
    return made


def released(query, backend, x, y, expected_batch=1.0):
    net = model(x.shape[1])
    private = sd.Private(net, loss, query, backend=backend, seed=0)
    for lot in private.draws(TensorDataset(x, y), Scripted((tuple(range(len(x))),)), 1, expected_batch=expected_batch):
        private.backward(lot)
    return net.weight.grad.clone()


def gradients(x, y):
    return -2 * y * x  # at 0


@pytest.mark.parametrize("backend", [Loop(), Captured()], ids=["loop", "captured"])
def test_every_gradient_is_shortened_to_an_l1_norm_of_the_bound(backend):
    x, y = records()
    found = released(sd.L1Sum(sd.Flat(1.0), sd.Laplace(0.0)), backend, x, y)
    each = gradients(x, y)
    wanted = (each * torch.clamp(1.0 / each.abs().sum(1, keepdim=True), max=1.0)).sum(0, keepdim=True)
    torch.testing.assert_close(found, wanted, rtol=1e-6, atol=1e-9)


def test_sparse_gradients_are_shortened_less_than_by_way_of_l2():
    x, y = records(n=1)
    exact = released(sd.L1Sum(sd.Flat(1.0), sd.Laplace(0.0)), None, x, y)
    detour = released(sd.NoisySum(sd.FlatL1(1.0, 50), sd.Laplace(0.0)), None, x, y)
    assert float(exact.abs().sum()) == pytest.approx(1.0, rel=1e-6)
    assert float(detour.abs().sum()) <= math.sqrt(3 / 50) + 1e-9  # ‖g‖₁ ≤ √3·‖g‖₂ of three numbers


def test_weighers_that_need_more_than_one_norm_are_refused():
    with pytest.raises(Refusal, match="bounds something else than one norm"):
        sd.L1Sum(sd.Layerwise([1.0, 1.0], sd.EqualShare()), sd.Laplace(1.0))
    with pytest.raises(Refusal, match="looks at the L2 norms of the lot"):
        sd.L1Sum(sd.BatchStatistic.median(5.0), sd.Laplace(1.0))


def test_the_sum_is_divided_by_the_expected_batch():
    x, y = records()
    query = sd.L1Sum(sd.Flat(1.0), sd.Laplace(0.0))
    torch.testing.assert_close(released(query, None, x, y, 4.0), released(query, None, x, y) / 4, rtol=1e-6, atol=1e-9)
