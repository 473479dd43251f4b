"""The average of the weights: its formula, the swap, the checkpoint."""

import pytest
import torch

import sordino as sd
from sordino.optim import Average
from tests.problems import linear, network, parameters, private


def moved(model, by):
    with torch.no_grad():
        for p in model.parameters():
            p.add_(by)


@pytest.mark.parametrize("warm", [True, False])
def test_it_is_the_formula(warm):
    model = network().double()
    average, expected = Average(model, 0.6, warm=warm), parameters(model)
    for t in range(20):
        moved(model, 0.1)
        average.update()
        decay = min(0.6, (1 + t) / (10 + t)) if warm else 0.6
        expected = decay * expected + (1 - decay) * parameters(model)
    other = network().double()
    average.copy_to(other)
    torch.testing.assert_close(parameters(other), expected, rtol=1e-12, atol=0)


def test_inside_swapped_the_model_has_the_average_and_after_it_its_own_also_when_it_fails():
    model = network()
    average = Average(model, 0.9)
    before = parameters(model)
    moved(model, 1.0)
    average.update()  # d₀ = 0.1

    def evaluate():
        with average.swap_temporarily():
            torch.testing.assert_close(parameters(model), before + 0.9)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        evaluate()
    torch.testing.assert_close(parameters(model), before + 1.0)


def test_a_frozen_parameter_is_left_alone_and_a_thawed_one_is_followed():
    model = network()
    model[0].requires_grad_(False)
    average = Average(model, 0.5)
    assert set(average.state_dict()["average"]) == {"2.weight", "2.bias"}
    model[0].requires_grad_(True)
    average.update()
    assert set(average.state_dict()["average"]) == {name for name, _ in model.named_parameters()}


def test_it_resumes_where_it_was():
    model = network()
    average = Average(model, 0.9)
    moved(model, 1.0)
    average.update()
    again = Average(network(), 0.9)
    again.load_state_dict(average.state_dict())
    for each in (average, again):
        each.update()
    there, here = again.state_dict(), average.state_dict()
    assert there["steps"] == here["steps"] == 2
    other = Average(torch.nn.Linear(1, 1), 0.9)
    with pytest.raises(ValueError, match=r"does not have: 0.bias"):
        other.load_state_dict(there)


def test_averaging_and_swapping_keep_the_claim():
    model = network()
    p, optimizer, average = private(model), torch.optim.SGD(model.parameters(), lr=0.1), Average(model, 0.99)
    for lot in p.draws(linear(), sd.Poisson(0.3), steps=3):
        p.backward(lot)
        optimizer.step()
        average.update()
        with average.swap_temporarily():
            model(torch.zeros(1, 6))
    assert isinstance(p.claim(1e-5), sd.Guarantee)


@pytest.mark.parametrize("decay", [1.0, -0.1, 2])
def test_a_decay_that_is_none_is_refused(decay):
    with pytest.raises(ValueError, match="must lie in"):
        Average(network(), decay)
