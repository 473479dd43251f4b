"""Training that leaves the finite numbers ends at that step, with its records; training that does not is left alone."""

import json
import math

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from tests.problems import linear, network, private


def regression() -> TensorDataset:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(60, 4, generator=generator)
    return TensorDataset(x, x @ torch.tensor([1.0, -2.0, 0.5, 3.0]))


def squared(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return (model(x).squeeze(1) - y).square()


def trained(query: sd.NoisySum, steps: int = 100) -> tuple[sd.Private, nn.Module, list[int]]:
    """A learning rate that plain gradient descent cannot bear, on the longest gradients first."""
    torch.manual_seed(0)
    model = nn.Linear(4, 1)
    run = sd.Private(model, squared, query, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=2.0)
    seen = []
    for lot in run.draws(regression(), sd.Sorted.top_k(10), steps=steps):
        seen.append(lot.step)
        run.backward(lot)
        optimizer.step()
    return run, model, seen


@pytest.mark.parametrize(
    "query",
    [
        sd.NoisySum(sd.Flat(math.inf), sd.Gaussian(0.0)),
        sd.NoisySum(sd.BatchStatistic.median(cap=math.inf), sd.Gaussian(1.1)),
    ],
    ids=["sorted SGD", "uncapped median"],
)
def test_what_the_source_saw_crash_ends_at_a_named_step_with_finite_parameters_and_all_its_records(query):
    run, model, seen = trained(query)
    assert run.diverged is not None
    assert run.diverged.step == seen[-1] < 99
    assert seen == list(range(len(seen)))
    assert "training diverged at step" in str(run.diverged)
    assert all(p.isfinite().all() for p in model.parameters())
    assert run.steps == len(seen)
    assert isinstance(run.claim(1e-5), sd.NoGuarantee)


def test_a_cap_keeps_the_same_training_finite():
    run, model, seen = trained(sd.NoisySum(sd.BatchStatistic.median(cap=1.0), sd.Gaussian(1.1)))
    assert run.diverged is None
    assert len(seen) == 100
    assert all(p.isfinite().all() for p in model.parameters())


def test_a_diverged_run_stays_ended_when_it_is_resumed():
    run, model, _ = trained(sd.NoisySum(sd.Flat(math.inf), sd.Gaussian(0.0)))
    again = sd.Private(model, squared, sd.NoisySum(sd.Flat(math.inf), sd.Gaussian(0.0)), seed=1)
    again.load_state_dict(json.loads(json.dumps(run.state_dict())))
    assert list(again.draws(regression(), sd.Sorted.top_k(10), steps=5)) == []
    assert again.diverged == run.diverged
    assert again.event == run.event


def test_parameters_that_an_optimizer_drove_out_of_the_finite_numbers_end_a_private_run_with_its_claim():
    model = network()
    run = private(model)
    steps = 0
    for lot in run.draws(linear(), sd.Poisson(0.1), steps=10):
        run.backward(lot)
        steps += 1
        if steps == 4:
            with run.post_processing("as a wild optimizer would"), torch.no_grad():
                model[2].bias[1] = math.inf
    assert steps == 4
    assert run.diverged == sd.Diverged(3, "parameter '2.bias'")
    assert isinstance(run.claim(1e-5), sd.Guarantee)
    assert run.claim(1e-5).event == sd.events.Repeat(sd.events.Poisson(0.1, sd.events.Gaussian(1.0)), 4)


def test_the_last_step_is_looked_at_too():
    model = network()
    run = private(model)
    for lot in run.draws(linear(), sd.Poisson(0.1), steps=2):
        run.backward(lot)
        if lot.step == 1:
            with torch.no_grad():
                model[0].weight.fill_(math.nan)
    assert run.diverged == sd.Diverged(1, "parameter '0.weight'")


def test_large_finite_parameters_are_finite():
    model = network()
    with torch.no_grad():
        model[0].weight.fill_(3e38)  # their sum is not a float32
    run = private(model)
    assert len([run.backward(lot) for lot in run.draws(linear(), sd.Poisson(0.1), steps=3)]) == 3


def test_a_model_that_begins_outside_the_finite_numbers_is_refused():
    model = network()
    with torch.no_grad():
        model[0].bias[0] = math.nan
    with pytest.raises(sd.Refusal, match=r"'0.bias' is not finite before the first step"):
        next(private(model).draws(linear(), sd.Poisson(0.1), steps=1))
