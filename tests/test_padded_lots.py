"""Padded lots: every pass has one shape, the added rows have no influence, and the claim is the same."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.lots.padding import LotPadding, keep_first_rows
from sordino.per_sample import Captured, Loop, Vmap
from sordino.refusal import Refusal
from sordino.release.rounding import rounding_slack
from tests.contracts import hunter

SAMPLER = sd.TruncatedPoisson(rate=0.1, max_batch=8)


def network(seed: int = 0) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.LayerNorm(7), nn.Linear(7, 3))


def loss_fn(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def records(n: int = 40) -> TensorDataset:
    rng = torch.Generator().manual_seed(1)
    return TensorDataset(torch.randn(n, 5, generator=rng), torch.randint(0, 3, (n,), generator=rng))


def private_run(model: nn.Module, loss=loss_fn, **options) -> sd.Private:
    query = sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.0))
    return sd.Private(model, loss, query, seed=3, **options)


def train(model: nn.Module, *, pad: bool, steps: int = 12, sampler=SAMPLER, loss=loss_fn, **options) -> sd.Private:
    private = private_run(model, loss, **{k: v for k, v in options.items() if k == "backend"})
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
    at_once = options.get("physical_batch")
    for lot in private.draws(records(), sampler, steps=steps, expected_batch=4, pad_lots=pad, physical_batch=at_once):
        private.backward(lot)
        optimizer.step()
    return private


@pytest.mark.parametrize(("physical_batch", "rows", "passes"), [(8, 8, 1), (4, 4, 2), (3, 3, 3), (100, 8, 1)])
def test_every_lot_takes_the_same_passes_of_one_shape_whoever_was_drawn(physical_batch, rows, passes):
    class Seen:
        shapes: list[int] = []  # noqa: RUF012

        def per_sample(self, model, loss, batch):
            self.shapes.append(len(batch[0]))
            return Loop().per_sample(model, loss, batch)

        def sample_bytes(self, model):
            return 1

    model = network()
    private = private_run(model, backend=Seen())
    sizes = set()
    lots = private.draws(records(), SAMPLER, steps=25, expected_batch=4, pad_lots=True, physical_batch=physical_batch)
    for k, lot in enumerate(lots):
        Seen.shapes.clear()
        parts = list(private._lot_gradients.generate_parts(lot, losses := []))
        b = sum(map(len, losses))
        sizes.add(b)
        assert sum(len(part.norms().squared) for part in parts) == b
        if k or b:  # before the first records were seen nothing is computed on zeros
            assert Seen.shapes == [rows] * passes
    assert len(sizes) > 4


def test_empty_lots_take_the_same_passes_and_add_nothing():
    model = network()
    private = private_run(model)
    lots = private.draws(records(), sd.TruncatedPoisson(0.02, 4), steps=30, expected_batch=1, pad_lots=True)
    empty = 0
    for lot in lots:
        (part,) = private._lot_gradients.generate_parts(lot, losses := [])
        if not len(losses[0]) and private._lot_gradients.padding.has_seen_records:
            empty += 1
            total = part.weighted_sum(torch.zeros(0, 1))
            assert all(torch.equal(value, torch.zeros_like(value)) for value in total.values())
    assert empty > 3


@pytest.mark.parametrize("backend", [Captured(), Vmap(), Loop()], ids=lambda b: type(b).__name__)
def test_the_sum_is_the_same_to_the_last_bit_whatever_the_added_rows_hold(backend):
    model, (x, y) = network(), records()[:5]
    padding = LotPadding.create(SAMPLER, 40, 8, (x, y))
    weights = torch.rand(5, 1)
    filled = padding.fill((x, y))
    sums = []
    for seed in range(3):
        torch.manual_seed(seed)
        own_x, own_y = filled[0].clone(), filled[1].clone()
        if seed:
            own_x[5:], own_y[5:] = 100 * torch.randn(3, 5), torch.randint(0, 3, (3,))
        part = keep_first_rows(backend.per_sample(model, loss_fn, (own_x, own_y)), 5)
        assert part.norms().squared.shape[0] == len(part.losses) == 5
        sums.append(part.weighted_sum(weights))
    for name, value in sums[0].items():
        assert torch.equal(value, sums[1][name])
        assert torch.equal(value, sums[2][name])
    # And it is that of the records alone, to rounding.
    plain = backend.per_sample(model, loss_fn, (x, y))
    for name, value in plain.weighted_sum(weights).items():
        torch.testing.assert_close(sums[0][name], value, rtol=1e-5, atol=1e-6)
    part = keep_first_rows(backend.per_sample(model, loss_fn, filled), 5)
    torch.testing.assert_close(part.norms().squared, plain.norms().squared, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(part.dot(sums[0]), plain.dot(sums[0]), rtol=1e-5, atol=1e-6)


def test_added_rows_that_are_not_finite_contribute_nothing():
    model, (x, y) = network(), records()[:5]
    filled = LotPadding.create(SAMPLER, 40, 8, (x, y)).fill((x, y))
    filled[0][5:] = torch.nan
    part = keep_first_rows(Captured().per_sample(model, loss_fn, filled), 5)
    plain = Captured().per_sample(model, loss_fn, (x, y))
    for name, value in plain.weighted_sum(torch.ones(5, 1)).items():
        torch.testing.assert_close(part.weighted_sum(torch.ones(5, 1))[name], value, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("physical_batch", [8, 3])
def test_training_is_the_same_to_rounding_and_the_claim_is_a_guarantee(physical_batch):
    padded_model, plain_model = network(), network()
    padded = train(padded_model, pad=True, physical_batch=physical_batch)
    plain = train(plain_model, pad=False, physical_batch=physical_batch)
    for ours, theirs in zip(padded_model.parameters(), plain_model.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)
    assert padded.event == plain.event
    claim = padded.claim(delta=1e-5)
    assert isinstance(claim, sd.Guarantee), claim
    assert claim.epsilon == plain.claim(delta=1e-5).epsilon


def test_the_slack_of_rounding_is_that_of_all_passes_together():
    one = LotPadding.create(sd.TruncatedPoisson(0.1, 1000), 10_000, 1000, records()[:1])
    four = LotPadding.create(sd.TruncatedPoisson(0.1, 1000), 10_000, 250, records()[:1])
    slack = rounding_slack
    assert slack(one.rows_rounded_together) == slack(1000)
    assert slack(four.rows_rounded_together) == pytest.approx(4 * slack(250))


@pytest.mark.parametrize("physical_batch", [12, 5])
def test_the_neighbour_hunter_finds_no_record_that_moves_a_padded_sum_further_than_declared(physical_batch):
    rng = np.random.default_rng(0)
    for _ in range(12):
        dataset = TensorDataset(*hunter.records(rng, 12))
        lots = tuple(tuple(np.flatnonzero(rng.random(12) < 0.6).tolist()) for _ in range(3))
        gone = int(rng.integers(12))
        fewer = tuple(tuple(i for i in lot if i != gone) for lot in lots)
        worlds = [hunter.World(dataset, hunter.Scripted(each), 3, pad_lots=True) for each in (lots, fewer)]
        found = hunter.compare(
            lambda: sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.0)), *worlds, Captured(), physical_batch=physical_batch
        )
        assert not found.broken, found
        assert found.worst > 0 or not any(gone in lot for lot in lots)


def test_records_that_are_coupled_at_the_padded_size_alone_are_found():
    def coupled(model, x, y):
        logits = model(x)
        return loss_fn(lambda _: logits - logits.mean(0) if len(x) == 8 else logits, x, y)

    with pytest.raises(Refusal, match=r"records in a batch influence each other|coupled"):
        train(network(), pad=True, loss=coupled)


def test_what_cannot_be_padded_is_refused_with_the_cure():
    with pytest.raises(Refusal, match=r"TruncatedPoisson\(rate=0.1, max_batch=5\)"):
        train(network(), pad=True, sampler=sd.Poisson(0.1))
    private = private_run(network())
    with pytest.raises(Refusal, match="units"):
        private.draws(records(), SAMPLER, steps=1, pad_lots=True, unit=sd.Unit(np.arange(40) // 2, name="person"))
    with pytest.raises(Refusal, match="isolate=True"):
        private_run(network(), isolate=True).draws(records(), SAMPLER, steps=1, pad_lots=True)
