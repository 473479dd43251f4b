"""Rows of small layers that are stacked on a device: what comes of them equals the layers' own formulas, one by one."""

import math

import pytest
import torch

from sordino.clipping.clipping_rule import bound_weights, bound_weights_unseen
from sordino.per_sample import Captured, Norms
from sordino.per_sample.engine import stacked_rows
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.release.sensitivity import Sensitivity
from sordino.rng.global_generators import Seeded
from tests.device.simulated import move, start
from tests.device.zoo import ZOO

start()

BATCH = 6
NAMES = ("mlp_dropout", "cnn_dropout", "lstm_dropout", "vit_dropout", "gpt2_dropout")


def compute_gradients(name, spoiled=None):
    """Returns the gradients of a batch on the device; the record `spoiled` has an input that is not a number."""
    torch.manual_seed(5)
    model, data, loss_fn = ZOO[name]()
    batch = [column[:BATCH].clone() for column in data.tensors]
    if spoiled is not None:
        batch[0][spoiled] = math.nan
    backend, on_device = Captured(PerformanceOptions(verify=False)), tuple(x.to("sim") for x in batch)
    with Seeded(3):
        return backend.per_sample(move(model).train(), loss_fn, on_device)


def compare(sums, others, tolerance=1e-5):
    size = max(float(each.abs().max()) for each in others.values())
    assert sums.keys() == others.keys()
    for name, each in others.items():
        assert float((sums[name] - each).abs().max()) <= tolerance * max(1.0, size), name


@pytest.mark.parametrize("room", ["nothing", "some of the layers"])
@pytest.mark.parametrize("name", NAMES)
def test_stacked_rows_give_the_norms_and_sums_of_the_layers_own_formulas(name, room, monkeypatch):
    stacked = compute_gradients(name)
    weights = torch.linspace(0.0, 1.0, BATCH, device="sim")[:, None]
    norms, sums = stacked.norms(), stacked.weighted_sum(weights)
    assert stacked._joint_parts.everything
    # In the middle of the sizes of the parameters, so that some are stacked and others are not.
    sizes = sorted(p.numel() for p in stacked._parameters)
    most = 0 if room == "nothing" else 4 * BATCH * sum(sizes[: len(sizes) // 2])
    monkeypatch.setattr(stacked_rows, "_MOST_BYTES", most)
    own = compute_gradients(name)
    own_norms = own.norms()
    assert own._joint_parts is None if room == "nothing" else not own._joint_parts.everything
    # Gram norms are raised for how a device adds products, never lowered.
    for found, plain in ((norms.sums, own_norms.sums), (norms.squared.sum(1), own_norms.squared.sum(1))):
        ratio = (plain.double() / found.double()).cpu()
        assert float(ratio.min()) >= 1 - 1e-5
        assert float(ratio.max()) <= 1 + 2e-3
    compare(sums, own.weighted_sum(weights))
    # Another sum, added to the first.
    into = own.weighted_sum(torch.ones_like(weights), into={n: t.clone() for n, t in sums.items()})
    compare(stacked.weighted_sum(torch.ones_like(weights), into={n: t.clone() for n, t in sums.items()}), into)


@pytest.mark.parametrize("name", ["cnn_dropout", "gpt2_dropout"])
def test_weights_by_parameter_and_sums_one_by_one(name):
    grads = compute_gradients(name)
    one = torch.linspace(0.1, 1.0, BATCH, device="sim")[:, None]
    expected = grads.weighted_sum(one)
    compare(grads.weighted_sum(one.expand(-1, len(expected)).contiguous()), expected)
    compare(dict(grads.sums(one)), expected)
    columns = dict(grads._joint_parts.squared_norms_by_column())
    assert torch.allclose(torch.stack(list(columns.values())).sum(0).cpu(), grads.norms().sums.cpu(), rtol=1e-5)


def test_a_record_of_weight_zero_adds_nothing_even_if_its_gradient_is_not_finite():
    weights = torch.tensor([[1.0], [0.5], [0.0], [1.0], [0.25], [1.0]]).to("sim")
    spoiled, whole = compute_gradients("mlp", spoiled=2), compute_gradients("mlp")
    assert not math.isfinite(float(spoiled.norms().sums[2]))
    compare(spoiled.weighted_sum(weights), whole.weighted_sum(weights), 1e-6)
    # With a weight it counts, so that a run without clipping sees that it diverges.
    total = spoiled.weighted_sum(torch.ones_like(weights))
    assert not all(bool(each.isfinite().all()) for each in total.values())
    # What was masked for the first sum is whole in the next.
    other = torch.tensor([[0.0], [0.5], [0.0], [1.0], [0.25], [1.0]]).to("sim")
    compare(spoiled.weighted_sum(other), whole.weighted_sum(other), 1e-6)


def test_weights_that_are_bounded_without_a_look_are_those_that_are_mended_row_by_row():
    """All kinds of weights against all kinds of norms, with a record's norm of zero, infinity and not a number."""
    given = torch.tensor([0.0, 0.3, 1.0, 7.0, 1e20, -1.0, math.inf, -math.inf, math.nan])
    squared = torch.tensor([0.0, 1e-30, 0.5, 1.0, 9.0, 1e30, math.inf, math.nan])
    w, s = (t.flatten() for t in torch.meshgrid(given, squared, indexing="ij"))
    unseen = bound_weights_unseen(w[:, None].to("sim"), s.to("sim"), 1.5).cpu()[:, 0]
    finite = s.isfinite()
    norms = Norms(torch.where(finite, s, 0)[:, None], ("all",))
    mended = bound_weights(torch.where(finite, w, 0)[:, None], norms, Sensitivity(l2=1.5), dict)[:, 0]
    torch.testing.assert_close(unseen, mended, rtol=2e-6, atol=0)
    assert float((unseen * (norms.total() + 1e-18)).max()) <= 1.5 * (1 + 1e-6)
