"""DP gradient descent: every record in every step, composed as the textbook does and better."""

import math

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.accounting import PLD, Advanced, Basic
from sordino.events import Gaussian, Laplace, Relation, Repeat

N, STEPS, RATE, TAU = 30, 12, 0.4, 0.5


def numbers():
    return 1.0 + torch.randn(N, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)


def descended(query):
    model = torch.nn.Linear(1, 1, bias=False).double()
    torch.nn.init.zeros_(model.weight)
    private = sd.Private(model, lambda m, x: 0.5 * (m(torch.ones_like(x)) - x).square().sum(1), query, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    for lot in private.draws(TensorDataset(numbers()), sd.Full(), steps=STEPS):
        private.backward(lot)
        optimizer.step()
    return model.weight.item(), private


@pytest.mark.parametrize("clipping", [sd.Flat(TAU), sd.FlatL1(TAU, dimension=1)], ids=str)
def test_without_noise_it_is_clipped_gradient_descent(clipping):
    theta = 0.0
    for _ in range(STEPS):
        theta -= (
            RATE * sum(math.copysign(min(TAU, abs(theta - x)), theta - x) for x in numbers().flatten().tolist()) / N
        )
    found, _ = descended(sd.NoisySum(clipping, sd.Gaussian(0.0)))
    assert found == pytest.approx(theta, rel=1e-12)


def test_k_steps_of_laplace_noise_cost_k_epsilon_or_less():
    """Lap(2τ/nε) on the mean is Lap(2τ/ε) on the sum: ε about one record replaced by another, as the textbook counts."""
    epsilon, delta = 0.1, 1e-5
    _, private = descended(sd.NoisySum(sd.FlatL1(TAU, dimension=1), sd.Laplace(2 / epsilon)))
    event = Repeat(Laplace(20.0), STEPS)
    assert private.event == event
    replaced = {kind: kind(relation=Relation.REPLACE) for kind in (Basic, Advanced, PLD)}
    basic = replaced[Basic].epsilon(event, delta)
    assert basic == pytest.approx(STEPS * epsilon)
    advanced = epsilon * math.sqrt(2 * STEPS * math.log(1 / delta)) + STEPS * epsilon * math.tanh(epsilon / 2)
    assert replaced[Advanced].epsilon(event, delta) <= min(basic, advanced) * (1 + 1e-9)
    assert replaced[PLD].epsilon(event, delta) < min(basic, advanced)
    assert private.claim(1e-12).epsilon == pytest.approx(STEPS * epsilon / 2, rel=1e-3)  # added or removed; pure ε
    assert "below what the noise supports" in private.claim(0.0).reason  # values of 37 scales are the last


def test_k_steps_of_gaussian_noise_are_one_with_less():
    _, private = descended(sd.NoisySum(sd.Flat(TAU), sd.Gaussian(5.0)))
    one = PLD().epsilon(Gaussian(5.0 / math.sqrt(STEPS)), 1e-5)
    assert private.claim(1e-5).epsilon == pytest.approx(one, rel=1e-4)


def test_the_noise_has_the_scale_of_the_l1_bound():
    torch.manual_seed(0)
    model = torch.nn.Linear(100, 100, bias=False)
    query = sd.NoisySum(sd.FlatL1(3.0, dimension=10_000), sd.Laplace(2.0))
    private = sd.Private(model, lambda m, x: m(x).sum(1), query, seed=0)
    for lot in private.draws(TensorDataset(torch.zeros(1, 100)), sd.Full(), steps=1, expected_batch=1.0):
        private.backward(lot)
    assert model.weight.grad.abs().mean().item() == pytest.approx(6.0, rel=0.05)  # 5 standard errors


def test_a_model_larger_than_was_said_is_refused_at_the_door():
    query = sd.NoisySum(sd.FlatL1(1.0, dimension=5), sd.Laplace(2.0))
    private = sd.Private(torch.nn.Linear(5, 1), lambda m, x: m(x).sum(1), query)
    lot = next(private.draws(TensorDataset(torch.zeros(4, 5)), sd.Full(), steps=1))
    with pytest.raises(ValueError, match=r"dimension=5: the sum has 6 coordinates"):
        private.backward(lot)
