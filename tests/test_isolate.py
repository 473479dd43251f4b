"""`isolate=True`: records that cannot see one another, by construction."""

import random
from collections import deque

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import ConcatDataset, Dataset, Subset, TensorDataset

import sordino as sd
from sordino.lots.frozen_state import FrozenState
from sordino.lots.one_record import dataset_of_one_record
from tests.honesty.data import Listed, cross_entropy, network, vectors

QUERY = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))


def train(model, loss, data, steps=3, **options):
    private = sd.Private(model, loss, QUERY, seed=3, isolate=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in private.draws(data, sd.Poisson(0.3), steps=steps, expected_batch=20, **options):
        private.backward(lot)
        optimizer.step()
    return private.claim(1e-5)


def test_the_gradients_are_those_of_the_default_engine():
    torch.manual_seed(0)
    one, two = network(), network()
    two.load_state_dict(one.state_dict())
    written = []
    for model, options in ((one, {}), (two, {"isolate": True})):
        private = sd.Private(model, cross_entropy, QUERY, seed=3, **options)
        for lot in private.draws(vectors(0), sd.Poisson(0.3), steps=1, expected_batch=20):
            private.backward(lot)
        written.append([p.grad.clone() for p in model.parameters()])
    for a, b in zip(*written, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


def test_the_claim_says_that_it_rests_on_construction_and_on_your_word():
    said = train(network(), cross_entropy, vectors(0))
    assert isinstance(said, sd.Guarantee)
    assert any("by construction" in what for what in said.rests_on)
    assert not any("replayed" in what for what in said.rests_on)


class Mean(Dataset):
    """Centres every record by the mean over all of them, computed when it is read."""

    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i] - self.x.mean(0), self.y[i]


@pytest.mark.parametrize(
    "dataset",
    [
        TensorDataset(torch.arange(10.0).reshape(5, 2)),
        Listed([torch.full((2,), float(i)) for i in range(5)]),
        [torch.full((2,), float(i)) for i in range(5)],
        Subset(TensorDataset(torch.arange(20.0).reshape(10, 2)), [9, 2, 4, 7, 1]),
        ConcatDataset([TensorDataset(torch.ones(2, 2)), TensorDataset(torch.arange(6.0).reshape(3, 2))]),
    ],
    ids=["tensors", "attribute", "list", "subset", "concatenated"],
)
def test_a_dataset_of_one_record_holds_that_record_and_no_other(dataset):
    for i in range(5):
        own = dataset_of_one_record(dataset, i)
        assert len(own) == 1
        assert str(own[0]) == str(dataset[i])


def test_a_statistic_over_the_rows_is_one_of_the_record_itself():
    data = Mean(torch.randn(20, 3), torch.zeros(20))
    assert float(dataset_of_one_record(data, 7)[0][0].norm()) == 0


def test_rows_in_a_closure_or_nowhere_cannot_be_taken_away_and_the_claim_says_so():
    rows = torch.randn(20, 6)

    class Numbered(Dataset):
        def __len__(self):
            return 20

        def __getitem__(self, i):
            return rows[i], i % 3

    assert dataset_of_one_record(Numbered(), 3) is None
    said = train(network(), cross_entropy, Numbered())
    assert any("your word that each record is read" in what for what in said.rests_on)


class Everything(nn.Module):
    """A module with every kind of memory."""

    shared: list = []  # noqa: RUF012

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.seen, self.recent, self.table, self.count = [], deque(maxlen=2), {}, 0
        self.generator, self.numpy, self.python = torch.Generator(), np.random.default_rng(0), random.Random(0)
        self.array = np.zeros(3)

    def remember(self, x):
        self.mean.add_(x)
        self.seen.append(x)
        self.recent.append(x)
        self.table["x"] = x
        self.count += 1
        self.shared.append(x)
        self.array += 1
        self.new = x
        return torch.rand((), generator=self.generator), self.numpy.random(), self.python.random()


def test_every_kind_of_state_is_put_back():
    module, captured, defaulted = Everything(), [], []

    def loss(model, x, kept=defaulted):
        captured.append(x)
        kept.append(x)
        global COUNTED
        COUNTED += 1
        return model.remember(x)

    state = FrozenState(module, (loss,), [1, 2, 3], 3)
    first = loss(module, torch.ones(3))
    state.put_back()
    assert not captured
    assert not defaulted
    assert not module.seen
    assert not module.recent
    assert not module.table
    assert module.count == 0
    assert not module.shared
    assert not hasattr(module, "new")
    assert COUNTED == 0
    assert float(module.mean.sum()) == 0
    assert module.array.sum() == 0
    assert loss(module, torch.ones(3)) == first  # the generators stand where they stood
    state.put_back()


COUNTED = 0


def test_what_cannot_be_put_back_is_refused():
    steps = iter(range(1000))

    def loss(model, x, y):
        return cross_entropy(model, x, y) * (1 + next(steps))

    with pytest.raises(sd.Refusal, match="cannot be put back"):
        train(network(), loss, vectors(0))


def test_a_loss_that_holds_one_entry_per_record_is_refused():
    data = vectors(0)
    everybody = data.tensors[0]
    with pytest.raises(sd.Refusal, match="in memory of the dataset"):
        train(network(), lambda m, x, y: cross_entropy(m, x - everybody.mean(0), y), data)
    copies = everybody.clone()
    with pytest.raises(sd.Refusal, match="one entry per record"):
        train(network(), lambda m, x, y: cross_entropy(m, x - copies.mean(0), y), data)


@pytest.mark.parametrize(
    ("options", "words"),
    [({"workers": 1}, "workers=0"), ({"unit": sd.Views(2)}, "beside `unit`")],
)
def test_what_needs_several_records_at_once_is_refused(options, words):
    with pytest.raises(sd.Refusal, match=words):
        train(network(), cross_entropy, vectors(0), **options)


def test_a_backend_beside_it_is_refused():
    with pytest.raises(sd.Refusal, match="isolate=True and backend"):
        sd.Private(network(), cross_entropy, QUERY, isolate=True, backend=sd.per_sample.Loop())


def test_fit_and_the_command_line_take_it(tmp_path):
    history = sd.fit("spiral", steps=3, records=60, seed=0, isolate=True, out=tmp_path / "run")
    assert any("by construction" in what for what in history.claim.rests_on)
    assert "isolate = true" in (tmp_path / "run" / "config.toml").read_text()


def test_code_that_needs_several_records_is_refused_and_the_message_quotes_none():
    def loss(model, x, y):
        if len(x) < 2:
            raise ValueError(f"one record alone: {x}")
        return cross_entropy(model, x, y)

    with pytest.raises(sd.Refusal, match="your code raised ValueError") as error:
        train(network(), loss, vectors(0))
    assert "tensor" not in str(error.value)
