"""Batches that are dicts: as they come, by name where the loss has the names, with None, in every backend."""

from collections import UserDict

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import sordino as sd
from sordino.per_sample import JL, Captured, Loop, Vmap
from sordino.per_sample.batch_structure import call_loss

N = 60


class Encoding(UserDict):
    """A mapping of another library, as `BatchEncoding` is."""


class Records(torch.utils.data.Dataset):
    """Dicts with a list of numbers, a number and a None, as tokenised text comes."""

    def __init__(self):
        generator = torch.Generator().manual_seed(0)
        self.x = torch.randn(N, 4, generator=generator)

    def __len__(self):
        return N

    def __getitem__(self, i):
        return Encoding(x=self.x[i].tolist(), labels=int(self.x[i, 0] > 0), spare=None)


def whole(model, batch):
    labels = batch.pop("labels")  # a dict of its own: what it takes out is there at the next call
    assert batch["spare"] is None
    return F.cross_entropy(model(batch["x"]), labels, reduction="none")


def by_name(model, x, labels, spare):
    assert spare is None
    return F.cross_entropy(model(x), labels, reduction="none")


def some_by_name(model, labels, x, **others):
    return F.cross_entropy(model(x), labels, reduction="none")


def trained(loss, backend=None, collate=None, workers=0):
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    private = sd.Private(model, loss, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), backend=backend, seed=1)
    for lot in private.draws(Records(), sd.Poisson(0.2), steps=4, expected_batch=12, collate=collate, workers=workers):
        private.backward(lot)
        optimizer.step()
    return model.weight.detach().clone(), private.claim(1e-5)


@pytest.mark.parametrize("backend", [None, Captured(), Loop(), Vmap(), JL(20)], ids=repr)
@pytest.mark.parametrize("loss", [whole, by_name, some_by_name])
def test_a_dict_trains_with_every_backend_and_signature(loss, backend):
    weight, claim = trained(loss, backend)
    assert isinstance(claim, sd.Guarantee), claim
    if not isinstance(backend, JL):
        assert torch.allclose(weight, trained(whole, Loop())[0], atol=1e-5)


@pytest.mark.parametrize("workers", [0, 1])
def test_a_mapping_of_another_library_comes_from_collate_too(workers):
    _, claim = trained(whole, collate=joined_as_encoding, workers=workers)
    assert isinstance(claim, sd.Guarantee), claim


def joined_as_encoding(records):
    rows = torch.tensor([record["x"] for record in records])
    return Encoding(x=rows, labels=torch.tensor([record["labels"] for record in records]), spare=None)


def test_names_that_do_not_match_are_refused_with_both_lists():
    with pytest.raises(sd.Refusal, match=r"keys x, labels, spare and the loss takes \(model, a, b\)"):
        trained(lambda model, a, b: a)


def test_a_loss_of_one_argument_gets_the_dict_whatever_the_argument_is_called():
    assert call_loss(lambda model, inputs: sorted(inputs), None, {"b": 1, "a": 2}) == ["a", "b"]
    assert call_loss(lambda model, *parts: len(parts), None, {"b": 1, "a": 2}) == 1


@pytest.mark.parametrize(
    ("record", "words"),
    [
        (lambda i: {"x": [0.0] * (1 + i % 2)}, "(?s)'x' differs in shape .*Give `collate` to pad it"),
        (lambda i: {"x": "text"}, "(?s)'x' is str.*number or a tensor"),
        (lambda i: {"x": 1.0 if i else None}, "'x' is None in some records"),
        (lambda i: {"x": 1.0} if i else {"y": 1.0}, "different keys"),
        (lambda i: (torch.zeros(1 + i % 2), 0), "(?s)cannot be joined .*Give `collate`"),
    ],
)
def test_records_that_make_no_batch_are_refused_with_the_cure(record, words):
    private = sd.Private(nn.Linear(4, 2), whole, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    with pytest.raises(sd.Refusal, match=words):
        private.draws([record(i) for i in range(9)], sd.Poisson(0.5), steps=1)


def test_draws_have_a_length_and_a_lot_says_what_it_is_for():
    model = nn.Linear(4, 2)
    private = sd.Private(model, whole, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    draws = private.draws(Records(), sd.Poisson(0.5), steps=3)
    assert len(draws) == 3
    assert private.steps == 0  # nothing is drawn ahead
    lot = next(draws)
    assert lot.to("cpu") is lot
    for misuse in (len, list, lambda lot: lot["x"]):
        with pytest.raises(TypeError, match=r"Pass it to private\.backward\(lot\)"):
            misuse(lot)
    with pytest.raises(AttributeError, match="cannot be set"):
        lot.expected_batch = 1.0
    assert len(list(draws)) == 2


def test_a_noisy_mean_of_the_losses_is_charged_and_near_the_true_one():
    torch.manual_seed(0)
    model = nn.Linear(4, 2)
    query = sd.WithLoss(sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), bound=5.0, noise=sd.Gaussian(10.0))
    private = sd.Private(model, whole, query)
    true = float(
        whole(model, {"x": Records().x, "labels": (Records().x[:, 0] > 0).long(), "spare": None}).detach().mean()
    )
    found = []
    for lot in private.draws(Records(), sd.Full(), steps=200):
        assert private.loss is None or isinstance(private.loss, float)
        private.backward(lot)
        found.append(private.loss)
    sd_of_mean = 10.0 * 5.0 / N / 200**0.5
    assert abs(sum(found) / 200 - true) < 5 * sd_of_mean  # by chance once in 10⁶
    both = sd.dry_run(query, sd.Full(), N, 200)
    assert private.event == both
    assert "Gaussian(multiplier=10.0)" in repr(both)


def test_a_loss_that_was_not_released_is_refused_with_the_cure():
    private = sd.Private(nn.Linear(4, 2), whole, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    with pytest.raises(sd.Refusal, match=r"sd\.WithLoss"):
        _ = private.loss


@pytest.mark.parametrize("name", ["item", "mean", "cpu", "backward", "tolist"])
def test_what_people_call_on_losses_names_what_to_do_instead(name):
    with pytest.raises(AttributeError, match=rf"(?s)no \.{name}: it is private\.\n.*sd\.WithLoss.*disclose"):
        getattr(sd.Sealed(torch.ones(2)), name)
