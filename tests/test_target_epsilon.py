"""`Private(model, loss_fn, epsilon=…)` and `draws(dataset, batch_size=…, epochs=…)` do what a newcomer means."""

import math

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

import sordino as sd

RECORDS = 400


def losses(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def data():
    x = torch.randn(RECORDS, 4, generator=torch.Generator().manual_seed(0))
    return TensorDataset(x, (x[:, 0] > 0).long())


def train(private, model, draws):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for lot in draws:
        private.backward(lot)
        optimizer.step()


def targeted(**given):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    return model, sd.Private(model, losses, **{"epsilon": 2.0, "delta": 1e-5, "clip": 0.7, **given})


def test_the_claim_of_the_whole_run_meets_the_target_and_wastes_little_of_it():
    model, private = targeted()
    train(private, model, private.draws(data(), batch_size=50, epochs=3))
    claim = private.claim(1e-5)
    assert private.steps == 24
    assert 1.99 < claim.epsilon <= 2.0
    query = private.open_for_audit().query
    assert query.clipping == sd.Flat(0.7)
    by_hand = sd.calibrate(
        lambda sigma: sd.NoisySum(sd.Flat(0.7), sd.Gaussian(sigma)),
        sd.Poisson(50 / RECORDS),
        24,
        epsilon=2.0,
        delta=1e-5,
    )
    assert query.noise.multiplier == by_hand


def test_it_is_bit_for_bit_the_run_with_the_nouns():
    model, private = targeted(seed=5)
    train(private, model, private.draws(data(), batch_size=50, epochs=2))
    sigma = private.open_for_audit().query.noise.multiplier
    torch.manual_seed(0)
    other = nn.Linear(4, 2)
    nouns = sd.Private(other, losses, sd.NoisySum(sd.Flat(0.7), sd.Gaussian(sigma)), seed=5)
    train(nouns, other, nouns.draws(data(), sd.Poisson(50 / RECORDS), 16, expected_batch=50))
    assert torch.equal(model.weight, other.weight)
    assert str(private.claim(1e-5)) == str(nouns.claim(1e-5))


def test_every_choice_is_printed():
    _, private = targeted()
    assert "not calibrated yet" in repr(private)
    private.draws(data(), batch_size=50, epochs=2)
    text = repr(private)
    assert "Flat(bound=0.7)" in text
    assert "Gaussian(multiplier=" in text
    assert "epsilon=2 at delta=1e-05" in text
    assert "16 lots by Poisson(rate=0.125)" in text


def test_a_data_loader_brings_dataset_batch_size_and_collate():
    seen = []

    def collate(records):
        seen.append(len(records))
        return torch.stack([x for x, _ in records]), torch.stack([y for _, y in records])

    model, private = targeted()
    train(private, model, private.draws(DataLoader(data(), batch_size=50, collate_fn=collate), epochs=1))
    assert private.steps == 8
    assert seen
    assert isinstance(private.claim(1e-5), sd.Guarantee)


def test_a_data_loader_without_a_batch_size_or_of_a_stream_is_refused_with_a_cure():
    class Stream(IterableDataset):
        def __iter__(self):
            return iter(())

    _, private = targeted()
    with pytest.raises(sd.Refusal, match=r"a stream was given(.|\n)*Shards\.from_stream"):
        private.draws(DataLoader(Stream()), epochs=1)
    with pytest.raises(sd.Refusal, match="batch sampler of its own"):
        private.draws(DataLoader(data(), batch_sampler=[[0, 1]]), epochs=1)


def test_a_second_call_of_draws_would_overspend_and_is_refused():
    model, private = targeted()
    train(private, model, private.draws(data(), batch_size=50, epochs=1))
    with pytest.raises(sd.Refusal, match="calibrated for"):
        private.draws(data(), batch_size=50, epochs=1)


def test_a_run_that_is_loaded_in_the_middle_draws_the_rest_of_its_epochs_with_the_same_noise():
    model, private = targeted()
    draws = iter(private.draws(data(), batch_size=50, epochs=3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(10):
        private.backward(next(draws))
        optimizer.step()
    state, sigma = private.state_dict(), private.open_for_audit().query.noise.multiplier
    again, resumed = targeted()
    again.load_state_dict(model.state_dict())
    resumed.load_state_dict(state)
    train(resumed, again, resumed.draws(data(), batch_size=50, epochs=3))
    assert resumed.steps == 24
    assert resumed.open_for_audit().query.noise.multiplier == sigma
    assert resumed.claim(1e-5).epsilon <= 2.0


def test_backward_before_draws_is_refused_by_name():
    _, private = targeted()
    with pytest.raises(sd.Refusal, match="not known yet"):
        private.backward((torch.randn(4, 4), torch.zeros(4, dtype=torch.long)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epsilon": None}, "neither query nor target"),
        ({"delta": None}, "neither query nor target"),
        ({"epsilon": -1.0}, "epsilon"),
        ({"delta": 2.0}, "delta"),
        ({"clip": 0.0}, "clip"),
        ({"query": sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))}, "beside query"),
    ],
)
def test_a_target_that_is_none_is_refused_in_one_line(given, words):
    with pytest.raises((TypeError, ValueError), match=words):
        targeted(**given)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"epochs": 1}, "no sampler"),
        ({"batch_size": 50}, "no number of steps"),
        ({"batch_size": 50, "sampler": sd.Poisson(0.1), "epochs": 1}, "beside sampler"),
        ({"batch_size": 50, "steps": 3, "epochs": 1}, "beside epochs"),
        ({"batch_size": RECORDS + 1, "epochs": 1}, "at most the number of records"),
        ({"batch_size": 50, "epochs": math.nan}, "epochs"),
    ],
)
def test_draws_that_are_not_said_are_refused_in_one_line(given, words):
    _, private = targeted()
    with pytest.raises((TypeError, ValueError), match=words):
        private.draws(data(), **given)
