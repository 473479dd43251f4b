"""Diagnostics say what the records say, and the claim says that they were asked."""

import math
from itertools import pairwise

import pytest
import torch

import sordino as sd
from sordino import diagnostics
from sordino.per_sample import Loop
from tests.contracts.hunter import Scripted
from tests.problems import cross_entropy, linear, network, private


def test_length_quantiles_are_those_of_a_plain_loop_and_are_disclosed():
    model, dataset = network(), linear()
    run = private(model, seed=None)
    rows = [3, 5, 8, 13, 21]
    lot = next(run.draws(dataset, Scripted((tuple(rows),)), steps=1, physical_batch=2))
    found = diagnostics.length_quantiles(run, lot)
    lengths = Loop().per_sample(model, cross_entropy, tuple(column[rows] for column in dataset.tensors)).norms().total()
    torch.testing.assert_close(torch.tensor(found), lengths.sort().values, check_dtype=False)
    run.backward(lot)
    assert run.claim(1e-5).not_covered == ("dataset size", diagnostics.LENGTHS)


def test_the_dominant_class_and_its_share_are_counted_and_disclosed():
    dataset = linear()
    ones = torch.nonzero(dataset.tensors[1] == 1).flatten()[:6].tolist()
    zeros = torch.nonzero(dataset.tensors[1] == 0).flatten()[:2].tolist()
    run = private(seed=None)
    lot = next(run.draws(dataset, Scripted((tuple(ones + zeros),)), steps=1, expected_batch=4))
    assert diagnostics.dominant_class(run, lot) == diagnostics.Dominant(1, 0.75)
    inverted = diagnostics.dominant_class(run, lot, label=lambda x, y: 1 - y)
    assert inverted == diagnostics.Dominant(0, 0.75)
    run.backward(lot)
    said = run.claim(1e-5)
    assert said.not_covered == (diagnostics.CLASSES,)
    assert f"not covered  {diagnostics.CLASSES}" in str(said)


def test_an_empty_lot_has_no_quantiles_and_no_class():
    run = private()
    lot = next(run.draws(linear(), Scripted(((),)), steps=1))
    assert all(math.isnan(value) for value in diagnostics.length_quantiles(run, lot))
    assert diagnostics.dominant_class(run, lot) is None


def test_update_cosines_are_of_released_gradients_and_need_no_disclosure():
    model = network()
    run = private(model, seed=None)
    cosines, updates = diagnostics.UpdateCosines(model), []
    for lot in run.draws(linear(), sd.Poisson(0.3), steps=4, expected_batch=20):
        run.backward(lot)
        cosines()
        updates.append(torch.cat([p.grad.flatten() for p in model.parameters()]).double())
    expected = [float(torch.cosine_similarity(a, b, dim=0)) for a, b in pairwise(updates)]
    assert cosines.values == pytest.approx(expected)
    assert run.claim(1e-5).not_covered == ()


def test_the_cosine_of_two_updates():
    a = {"w": torch.tensor([[1.0, 0.0]]), "b": torch.tensor([0.0])}
    b = {"w": torch.tensor([[-2.0, 0.0]]), "b": torch.tensor([0.0])}
    assert diagnostics.cosine(a, b) == pytest.approx(-1)
    assert diagnostics.cosine(a, {"w": torch.tensor([[0.0, 3.0]]), "b": torch.tensor([1.0])}) == pytest.approx(0)
    assert math.isnan(diagnostics.cosine(a, {"w": torch.zeros(1, 2), "b": torch.zeros(1)}))
    with pytest.raises(ValueError, match="same names"):
        diagnostics.cosine(a, {"w": a["w"]})


def test_an_old_lot_cannot_be_asked():
    run = private()
    lots = run.draws(linear(), sd.Poisson(0.1), steps=2)
    first = next(lots)
    next(lots)
    with pytest.raises(sd.Refusal, match="not the one drawn last"):
        run.lengths(first)
