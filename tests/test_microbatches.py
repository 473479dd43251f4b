"""Microbatches: what a group's clipped mean is, what one record can move, and what it costs."""

import numpy as np
import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.clipping.clipping_rule import Rule, Stateless
from sordino.per_sample import Loop
from sordino.release.sensitivity import Sensitivity
from sordino.rng.streams import Rng
from tests.contracts.hunter import Scripted, World, compare, network, records, squared_error


def test_the_sum_is_that_of_the_clipped_means_of_the_groups():
    dataset = TensorDataset(*records(np.random.default_rng(6), 10))
    model, lot = network(), (0, 2, 3, 4, 7, 8, 9)
    query = sd.Microbatches(sd.Flat(0.5), sd.Gaussian(0.0), sd.ByPosition(3))
    private = sd.Private(model, squared_error, query, seed=0)
    for drawn in private.draws(dataset, Scripted((lot,)), steps=1, expected_batch=6.0, physical_batch=2):
        private.backward(drawn)
    grads = Loop().per_sample(network(), squared_error, tuple(column[list(lot)] for column in dataset.tensors))
    rows = torch.cat([g.flatten(1) for g in grads.rows.values()], dim=1)
    means = torch.stack([rows[:3].mean(0), rows[3:6].mean(0), rows[6:].mean(0)])
    clipped = means * torch.clamp(0.5 / means.norm(dim=1, keepdim=True), max=1.0)
    written = torch.cat([p.grad.flatten() for p in model.parameters()])
    torch.testing.assert_close(written, clipped.sum(0) / 2.0)  # expected batch 6 in groups of 3: two groups


def test_a_records_group_does_not_depend_on_who_else_is_there():
    coins = sd.ByCoin(5)
    everyone = coins.assign_groups(np.arange(100), Rng.from_seed(1).child("groups", 0))
    some = coins.assign_groups(np.array([7, 3, 50]), Rng.from_seed(1).child("groups", 0))
    assert some.tolist() == everyone[[7, 3, 50]].tolist()
    assert set(everyone) == set(range(5))
    assert coins.assign_groups(np.arange(100), Rng.from_seed(1).child("groups", 1)).tolist() != everyone.tolist()


def test_noise_of_sigma_c_is_charged_at_half_sigma_and_is_what_is_added():
    """Noise of σC on a sum that moves by 2C. 40,000 values: 2 % is over 5 standard errors."""
    query = sd.Microbatches(sd.Flat(0.5), sd.Gaussian(3.0), sd.ByCoin(4))
    assert sd.dry_run(query, sd.Poisson(0.1), dataset_size=100, steps=1) == sd.events.Poisson(
        0.1, sd.events.Gaussian(1.5)
    )
    model = torch.nn.Linear(200, 200, bias=False)
    private = sd.Private(model, lambda m, x: m(x).sum(1), query, seed=1)
    for lot in private.draws(TensorDataset(torch.zeros(1, 200)), Scripted(((),)), steps=1, expected_batch=8.0):
        private.backward(lot)
    assert model.weight.grad.std() * 4 == pytest.approx(3.0 * 0.5, rel=0.02)
    assert model.weight.grad.std() == pytest.approx(sd.optim.noise_scale(query, expected_batch=8.0), rel=0.02)


def test_two_opposite_records_in_one_group_reach_the_whole_sensitivity():
    """A group's mean turns from C to −C: the sum moves by 2C, and a claim at σ would be twice too good."""
    x = torch.tensor([[1000.0], [-5000.0]], dtype=torch.float64)

    def model():
        return torch.nn.Linear(1, 1, bias=False).double()

    def world(lot):
        return World(TensorDataset(x), Scripted((lot,)), 1, model, lambda m, x: m(x).sum(1))

    catch = compare(
        lambda: sd.Microbatches(sd.Flat(0.5), sd.Gaussian(1.0), sd.ByCoin(1)), world((0, 1)), world((0,)), Loop()
    )
    assert catch.worst == pytest.approx(1.0)
    assert not catch.broken


@pytest.mark.parametrize(
    "clipping",
    [
        sd.AdaptiveQuantile(1.0, quantile=0.5, count_noise=1.0),
        sd.AdaptiveLayerwise([1.0], quantile=0.5, count_noise=1.0),
    ],
    ids=lambda w: type(w).__name__,
)
def test_a_weigher_that_counts_records_is_refused(clipping):
    with pytest.raises(sd.Refusal, match="counts records"):
        sd.Microbatches(clipping, sd.Gaussian(1.0), sd.ByCoin(2))


def test_noise_for_another_norm_is_refused():
    with pytest.raises(TypeError, match="must be Gaussian"):
        sd.Microbatches(sd.Flat(1.0), sd.Laplace(1.0), sd.ByCoin(2))


class OverTheLongest(Stateless):
    """A stranger's clipping rule: its weights are a statistic over the groups."""

    def rule(self, state, lot):
        def weights(norms):
            r = norms.total()
            return (r.max() / (r.max() + 1) / r.clamp(min=1)).unsqueeze(1) if len(r) else r.unsqueeze(1)

        return Rule(weights, Sensitivity(1.0))


def test_a_strangers_weigher_that_looks_at_other_groups_voids_the_claim():
    dataset = TensorDataset(*records(np.random.default_rng(6), 40))
    query = sd.Microbatches(OverTheLongest(), sd.Gaussian(1.0), sd.ByCoin(4))
    p = sd.Private(network(), squared_error, query, seed=0)
    for lot in p.draws(dataset, sd.Poisson(0.5), steps=3):
        p.backward(lot)
    assert "other rows" in p.claim(1e-5).reason
