"""Lots of units: what is drawn, clipped and claimed is all that belongs to one person, or the views of one record."""

import json

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import Dataset, TensorDataset

import sordino as sd
from sordino.lots.loading import Loader
from sordino.lots.privacy_units import Members, UnitLoader
from sordino.per_sample import Captured, Loop, Vmap
from tests.contracts.hunter import Scripted, World, compare, network, records, squared_error
from tests.contracts.row import speakers
from tests.untested import untested

UNITS = 9
BOUND = 0.5


def data(seed: int = 2) -> tuple[TensorDataset, sd.Unit]:
    total, unit = speakers(UNITS)
    return TensorDataset(*records(np.random.default_rng(seed), total)), unit


def dpsgd(multiplier: float) -> sd.NoisySum:
    return sd.NoisySum(sd.Flat(BOUND), sd.Gaussian(multiplier))


def everything(dataset, ids, unit, lot):
    """The sum by hand: for each unit the mean of its records' losses, its gradient by autograd, clipped on its own."""
    model = network()
    total = [torch.zeros_like(p) for p in model.parameters()]
    for u in lot:
        own = [i for i, whose in enumerate(ids) if whose == u]
        loss = squared_error(model, *(column[own] for column in dataset.tensors)).mean()
        grads = torch.autograd.grad(loss, list(model.parameters()))
        length = torch.cat([g.flatten() for g in grads]).norm()
        for t, g in zip(total, grads, strict=True):
            t += g * min(1.0, BOUND / float(length))
    return total


@pytest.mark.parametrize("backend", [Loop(), Vmap(), Captured()], ids=["loop", "vmap", "captured"])
@pytest.mark.parametrize("physical_batch", [1, 2, 100])
def test_the_sum_is_that_of_clipped_means_of_the_units(backend, physical_batch):
    dataset, unit = data()
    unit = sd.Unit(unit.of, records=20, name="speaker")  # all records of all units
    lot = (0, 2, 5, 8)
    model = network()
    private = sd.Private(model, squared_error, dpsgd(0.0), backend=backend, seed=0)
    with untested():
        for drawn in private.draws(
            dataset, Scripted((lot,)), 1, expected_batch=1.0, unit=unit, physical_batch=physical_batch
        ):
            private.backward(drawn)
    for p, total in zip(model.parameters(), everything(dataset, unit.of, unit, lot), strict=True):
        torch.testing.assert_close(p.grad, total, rtol=1e-9, atol=1e-12)


def test_units_of_one_record_are_records():
    dataset, _ = data()

    def run(**options):
        model = network()
        private = sd.Private(model, squared_error, dpsgd(1.0), seed=4)
        for lot in private.draws(dataset, sd.Poisson(0.3), steps=1, **options):
            private.backward(lot)
        return torch.cat([p.grad.flatten() for p in model.parameters()])

    alone = sd.Unit(range(len(dataset)), records=1, name="speaker")
    torch.testing.assert_close(run(unit=alone), run(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(run(unit=sd.Views(3)), run(), rtol=1e-10, atol=1e-12)  # nothing changes them


def test_the_hunter_finds_that_clipping_by_record_does_not_bound_a_unit():
    """Drawn by unit and clipped by record, five equal records of one person move the sum five times as far."""
    x, y = torch.ones(6, 5, dtype=torch.float64), torch.full((6, 3), 9.0, dtype=torch.float64)
    dataset = TensorDataset(x, y)
    by_record = World(dataset, Scripted(((0, 1, 2, 3, 4, 5),))), World(dataset, Scripted(((0,),)))
    assert compare(lambda: dpsgd(1.0), *by_record, Captured()).worst > 4.9
    unit = sd.Unit([0, 1, 1, 1, 1, 1], records=5, name="speaker")
    by_unit = (World(dataset, Scripted((lot,)), unit=unit) for lot in ((0, 1), (0,)))
    assert compare(lambda: dpsgd(1.0), *by_unit, Captured()).worst == pytest.approx(1.0)


def trained(steps: int = 30, loss_fn=squared_error, **options):
    dataset, unit = data()
    model = network()
    private = sd.Private(model, loss_fn, dpsgd(2.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in private.draws(dataset, sd.Poisson(0.3), steps, expected_batch=3, unit=unit, **options):
        private.backward(lot)
        optimizer.step()
    return private, model, dataset, unit


def test_the_claim_says_the_unit_and_costs_what_sampling_units_costs():
    private, *_ = trained()
    said = private.claim(1e-5)
    assert isinstance(said, sd.Guarantee)
    assert said.unit == "speaker"
    assert "neighbours   add-or-remove-one: one speaker added or removed" in str(said)
    assert "lots replayed with a speaker exchanged" in str(said)
    assert "which records are of one speaker, by declaration" in str(said)
    assert private.event == sd.dry_run(dpsgd(2.0), sd.Poisson(0.3), UNITS, 30)


def hardest(model, x, y):
    """Only what is harder than usual counts: every unit's gradient depends on the others."""
    losses = squared_error(model, x, y)
    return losses * (losses > losses.median())


def test_units_that_are_coupled_are_refused():
    with pytest.raises(sd.Refusal, match="coupled"):
        trained(loss_fn=hardest)


def test_units_that_become_coupled_end_the_claim():
    dataset, unit = data()
    model, step = network(), [0]
    private = sd.Private(model, lambda *a: (hardest if step[0] > 10 else squared_error)(*a), dpsgd(2.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in private.draws(dataset, sd.Poisson(0.3), 40, expected_batch=3, unit=unit):
        private.backward(lot)
        optimizer.step()
        step[0] += 1
    assert "coupled" in str(private.claim(1e-5))


def test_one_ledger_has_one_unit():
    private, model, dataset, _ = trained()
    again = sd.Private(model, squared_error, dpsgd(2.0))
    with pytest.raises(sd.Refusal, match="about one speaker"):
        next(again.draws(dataset, sd.Poisson(0.3), steps=1))
    with pytest.raises(sd.Refusal, match="about one speaker"):
        sd.ask(sd.statistics.Mean(1.0, sd.Gaussian(5.0)), dataset, ledger=private._ledger)
    saved = json.loads(json.dumps(private._ledger.state_dict()))
    loaded = sd.Ledger()
    loaded.load_state_dict(saved)
    assert loaded.claim(1e-5).unit == "speaker"


class Jittered(Dataset):
    """Records that are read with noise; remembers how often each was."""

    def __init__(self, n: int) -> None:
        self.read: list[int] = []
        self.n = n

    def __len__(self) -> int:
        return self.n

    def __getitem__(self, i: int):
        self.read.append(i)
        return torch.full((3,), float(i)) + torch.randn(3)


def test_views_are_read_one_by_one_and_averaged_before_the_clip():
    dataset = Jittered(6)
    model = nn.Linear(3, 1, bias=False)
    seen = []

    def loss_fn(m, x):
        seen.append(x.detach().clone())
        return m(x).sum(1)  # the gradient of a record is its view

    private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(2.0), sd.Gaussian(0.0)), backend=Loop(), seed=0)
    with untested():
        for lot in private.draws(dataset, Scripted(((1, 4),)), 1, expected_batch=1.0, unit=sd.Views(4)):
            dataset.read.clear()
            seen.clear()
            private.backward(lot)
    assert sorted(dataset.read) == [1] * 4 + [4] * 4
    means = [views.mean(dim=0) for views in seen]
    assert all(len(views) == 4 and views.std(dim=0).min() > 0.01 for views in seen)
    clipped = sum(mean * min(1.0, 2.0 / float(mean.norm())) for mean in means)
    torch.testing.assert_close(model.weight.grad[0], clipped)


def test_a_claim_about_views_is_about_records():
    model = nn.Linear(3, 1)
    private = sd.Private(model, lambda m, x: m(x).square().sum(1), dpsgd(2.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in private.draws(TensorDataset(torch.randn(50, 3)), sd.Poisson(0.2), 5, unit=sd.Views(4)):
        private.backward(lot)
        optimizer.step()
    assert private.claim(1e-5).unit == "record"
    assert "declaration" not in str(private.claim(1e-5))


def test_of_a_large_unit_other_records_are_read_in_every_lot():
    dataset = Jittered(40)
    unit = sd.Unit([0] * 30 + list(range(1, 11)), records=3, name="author")
    model = nn.Linear(3, 1)
    private = sd.Private(model, lambda m, x: m(x).square().sum(1), dpsgd(1.0), seed=1)
    lots = []
    with untested():
        for lot in private.draws(dataset, Scripted(((0, 5),)), 40, unit=unit):
            dataset.read.clear()
            private.backward(lot)
            lots.append([i for i in dataset.read if i < 30])
    assert all(len(set(lot)) == 3 for lot in lots)
    assert len({i for lot in lots for i in lot}) > 25  # of 30: in 40 lots each is missed with probability 0.9⁴⁰ = 0.015


def test_a_public_gradient_is_added_after_the_door_for_nothing():
    dataset, unit = data()
    model, public = network(), torch.ones(4, 5, dtype=torch.float64)
    private = sd.Private(model, squared_error, dpsgd(1.0))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    for lot in private.draws(dataset, sd.Poisson(0.3), 5, expected_batch=3, unit=unit):
        private.backward(lot)
        noisy = [p.grad.clone() for p in model.parameters()]
        with private.public("made-up records"):
            model(public).square().mean().backward()
        own = torch.autograd.grad(model(public).square().mean(), list(model.parameters()))
        for p, released, gradient in zip(model.parameters(), noisy, own, strict=True):
            torch.testing.assert_close(p.grad, released + gradient)
        optimizer.step()
    said = private.claim(1e-5)
    assert isinstance(said, sd.Guarantee)
    assert private.event == sd.dry_run(dpsgd(1.0), sd.Poisson(0.3), UNITS, 5)
    assert "steps on data declared public: made-up records" in said.not_covered


class Lines(Dataset):
    """Records that are dicts, of three speakers."""

    def __len__(self) -> int:
        return 12

    def __getitem__(self, i: int):
        return {"speaker": "abc"[i % 3], "x": torch.full((2,), float(i))}


def test_a_unit_may_be_a_column_of_the_records():
    model = nn.Linear(2, 1)
    private = sd.Private(model, lambda m, x: m(x).square().sum(1), dpsgd(1.0))
    drop = lambda found: torch.stack([record["x"] for record in found])  # noqa: E731
    for lot in private.draws(Lines(), sd.Poisson(0.5), 2, unit="speaker", collate=drop):
        private.backward(lot)
        assert lot.expected_batch == 1.5  # of three speakers
    assert private.claim(1e-5).unit == "speaker"


@pytest.mark.parametrize(
    ("unit", "options", "words"),
    [
        (sd.Unit([0, 1], name="speaker"), {}, "one id for every record"),
        (sd.Unit([[0]] * 12, name="speaker"), {}, "numbers or strings"),
        ("author", {}, "no such column"),
        (sd.Views(2), {"workers": 1}, "workers=0"),
    ],
)
def test_what_cannot_be_a_unit_is_refused_in_words(unit, options, words):
    private = sd.Private(nn.Linear(2, 1), lambda m, x: m(x).square().sum(1), dpsgd(1.0))
    with pytest.raises(sd.Refusal, match=words):
        private.draws(Lines(), sd.Poisson(0.5), 1, unit=unit, **options)


def test_ids_need_a_name():
    with pytest.raises(ValueError, match="name='speaker'"):
        sd.Unit([0, 1])
    private = sd.Private(nn.Linear(2, 1), lambda m, x: m(x).square().sum(1), dpsgd(1.0))
    with pytest.raises(TypeError, match="Unit"):
        private.draws(Lines(), sd.Poisson(0.5), 1, unit=[0] * 12)


def test_generators_are_seeded_before_the_first_record_of_every_unit_and_before_collate():
    """A unit with fewer records than places is filled up, and its places do not count as another unit's."""
    events = []

    class Noting(Dataset):
        def __len__(self):
            return 6

        def __getitem__(self, index):
            events.append(("read", int(index)))
            return torch.tensor([float(index)])

    members = Members(order=np.arange(6), starts=np.array([0, 3, 4, 6]), records=2)
    load = UnitLoader(Loader(Noting(), None), members)
    load(np.array([0, 1, 2]), before=lambda place: events.append(("seed", place)))
    assert [event for event in events if event[0] == "seed"] == [("seed", 0), ("seed", 1), ("seed", 2), ("seed", -1)]
    assert [events.index(("seed", unit)) < events.index(("read", first)) for unit, first in enumerate((0, 3, 4))] == [
        True,
        True,
        True,
    ]
    assert events[0] == ("seed", 0)
    assert events[-1] == ("seed", -1)
