"""What is particular to a family of clipping rules; what all of them keep is in tests/contracts."""

import math
from functools import partial

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.clipping.noise_shares import EqualShare, Isotropic, LeastNoise, Multipliers, noise_units
from sordino.per_sample.materialised import Materialised
from sordino.per_sample.protocol import Norms


def weight(clipping, *r: float) -> list[float]:
    norms = Norms(torch.tensor([[x * x] for x in r], dtype=torch.float64), ("all",))
    return clipping.rule(clipping.init(), list).weights(norms)[:, 0].tolist()


def test_the_weights_are_those_of_the_papers():
    assert weight(sd.PSAC(2.0, gamma=0.1), 3.0) == pytest.approx([2 / (3 + 0.1 / 3.1)])
    assert weight(sd.Normalised(2.0), 4.0, 1e-3) == pytest.approx([0.5, 2000.0])
    assert weight(sd.BandPass(2.0, threshold=1.0), 0.9, 1.5, 8.0) == pytest.approx([0.0, 1.0, 0.25])
    assert weight(sd.GlobalAdapt(1.0, threshold=4.0), 2.0, 8.0) == pytest.approx([0.25, 0.125])
    assert weight(sd.Global(1.0, threshold=4.0), 2.0, 8.0) == pytest.approx([0.25, 0.0])


def test_a_gradient_whose_squares_vanish_in_float32_is_not_lifted_over_the_bound():
    """A million elements of 2e-23, whose squares are rounded to nothing, beside one of 4e-23: they count all the same."""
    row = torch.full((1, 1_000_000), 2e-23)
    row[0, 0] = 4e-23
    grads = Materialised({"w": row}, torch.zeros(1))
    norm = row.double().norm()
    assert grads.norms().total() >= norm
    for clipping in (sd.Normalised(1.0), sd.Automatic(1.0), sd.PSAC(1.0)):
        assert clipping.rule(None, list).weights(grads.norms())[0, 0] * norm <= 1.0


BOUNDS, SIZES = [1.0, 0.5, 0.1], [1000, 10, 1]


@pytest.mark.parametrize("share", [Isotropic(), EqualShare(), LeastNoise(), Multipliers((2.0, 3.0, 5.0))], ids=str)
def test_noise_that_is_divided_among_groups_has_the_multiplier_that_is_claimed(share):
    """1/σ² = Σ C_k²/s_k² with s_k the noise that the door leaves on group k."""
    sigma = share.effective if isinstance(share, Multipliers) else 1.7
    length = math.sqrt(sum(c * c for c in BOUNDS))
    noise = [sigma * length / unit for unit in noise_units(share, BOUNDS, SIZES)]
    assert sum((c / s) ** 2 for c, s in zip(BOUNDS, noise, strict=True)) == pytest.approx(1 / sigma**2)


def test_each_division_of_noise_is_the_one_it_is_named_for():
    length = math.sqrt(sum(c * c for c in BOUNDS))

    def noise(share, sigma=1.0):
        return [sigma * length / unit for unit in noise_units(share, BOUNDS, SIZES)]

    assert noise(Isotropic()) == pytest.approx([length] * 3)
    assert noise(EqualShare()) == pytest.approx([math.sqrt(3) * c for c in BOUNDS])
    spread = sum(c * math.sqrt(d) for c, d in zip(BOUNDS, SIZES, strict=True))
    least = [math.sqrt(c / math.sqrt(d) * spread) for c, d in zip(BOUNDS, SIZES, strict=True)]
    assert noise(LeastNoise()) == pytest.approx(least)
    given = Multipliers((2.0, 3.0, 5.0))
    assert noise(given, given.effective) == pytest.approx([2.0 * 1.0, 3.0 * 0.5, 5.0 * 0.1])

    def total(share):
        return sum(d * s * s for d, s in zip(SIZES, noise(share), strict=True))

    assert total(LeastNoise()) < min(total(Isotropic()), total(EqualShare()))


def test_bounds_and_multipliers_by_layer_cost_what_they_amount_to_and_not_each_its_own():
    query = sd.NoisySum.per_layer({"0.": (1.0, 2.0), "2.": (0.5, 2.0)})
    event = sd.dry_run(query, sd.Full(), dataset_size=10, steps=1)
    assert isinstance(event, sd.events.Gaussian)
    assert event.multiplier == pytest.approx(2.0 / math.sqrt(2))


def test_every_layer_gets_the_noise_of_its_own_multiplier():
    """Two layers of 40,000 values a step: 1 % is over 2.8 standard errors, and the two differ by a factor of 40."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(200, 200, bias=False), torch.nn.Linear(200, 200, bias=False))
    query = sd.NoisySum.per_layer({"0.": (1.0, 4.0), "1.": (0.1, 1.0)})
    private = sd.Private(model, lambda m, x: m(x).sum(1), query, seed=1)
    for lot in private.draws(TensorDataset(torch.zeros(1, 200)), sd.Poisson(1e-9), steps=1, expected_batch=1.0):
        private.backward(lot)
    assert model[0].weight.grad.std() == pytest.approx(4.0, rel=0.02)
    assert model[1].weight.grad.std() == pytest.approx(0.1, rel=0.02)


def test_an_optimizer_is_not_told_one_scale_where_there_are_many():
    with pytest.raises(TypeError, match="differs from layer to layer"):
        sd.optim.noise_scale(sd.NoisySum.per_layer({"0.": (1.0, 4.0), "1.": (0.1, 1.0)}), expected_batch=1.0)


def test_a_threshold_per_group_costs_a_count_per_group():
    """K counts, each moved by ½ under noise s: one Gaussian of multiplier 2s/√K on the same draw."""
    clipping = sd.AdaptiveLayerwise({"0.": 1.0, "2.": 1.0, "4.": 1.0}, quantile=0.5, count_noise=6.0)
    event = sd.dry_run(sd.NoisySum(clipping, sd.Gaussian(1.5)), sd.Poisson(0.1), dataset_size=10, steps=1)
    parts = event.event.events
    assert parts[0] == sd.events.Gaussian(1.5)
    assert parts[1].multiplier == pytest.approx(12.0 / math.sqrt(3))


@pytest.mark.parametrize(
    "clipping",
    [
        sd.AdaptiveLayerwise([100.0, 1e-2], quantile=0.5, count_noise=0.5),
        sd.AdaptiveQuantile(100.0, quantile=0.5, count_noise=0.5, clipping=partial(sd.GlobalAdapt, 1.0)),
    ],
    ids=["by-layer", "global"],
)
def test_what_follows_a_quantile_comes_to_it(clipping):
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    data = TensorDataset(torch.randn(200, 4), torch.randn(200, 1))

    def loss_fn(m, x, y):
        return (m(x) - y).square().sum(1)

    private = sd.Private(model, loss_fn, sd.NoisySum(clipping, sd.Gaussian(1.0)), seed=0)
    for lot in private.draws(data, sd.Full(), steps=100):
        private.backward(lot)  # no step: the norms stay where they are
    norms = sd.per_sample.Loop().per_sample(model, loss_fn, data.tensors).norms()
    state = private.state_dict()["state"]
    if isinstance(state, list):
        assert state == pytest.approx(norms.squared.sqrt().median(dim=0).values.tolist(), rel=0.1)
    else:
        assert state == pytest.approx(norms.total().median().item(), rel=0.1)
