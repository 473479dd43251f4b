"""Whatever a clipping rule says, no row reaches further than the rule's promise; and a statistic over rows is found out."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import sordino as sd
from sordino.clipping.clipping_rule import RowwiseWatch, Rule, bound_weights, sum_clipped, works_row_by_row
from sordino.clipping.noise_shares import EqualShare, LeastNoise
from sordino.per_sample.materialised import Materialised
from sordino.per_sample.protocol import Norms
from sordino.refusal import Refusal
from sordino.release.sensitivity import Sensitivity, Unproven
from sordino.rng.streams import Rng
from sordino.sampling import Band, ByLength
from sordino.statistics.clipped_sum import ClippedSum

B = 6
SIZES = {"a": 12, "b": 5}


def gradients(scale: float = 3.0) -> Materialised:
    torch.manual_seed(0)
    return Materialised({"a": scale * torch.randn(B, 3, 4), "b": scale * torch.randn(B, 5)}, torch.zeros(B))


def moves(rule: Rule, grads: Materialised) -> torch.Tensor:
    """What each row adds to the sum, (B,), with the units taken in."""
    units = rule.sensitivity.units
    factors = {"a": 1.0, "b": 1.0} if units is None else units(SIZES)
    found = []
    for i in range(B):
        alone = Materialised({n: r[i : i + 1] for n, r in grads.rows.items()}, torch.zeros(1))
        total = sum_clipped(
            (alone,), Rule(lambda n, i=i: rule.weights(grads.norms())[i : i + 1], rule.sensitivity)
        ).total
        found.append(math.sqrt(sum(float((factors[n] * t.double()).norm()) ** 2 for n, t in total.items())))
    return torch.tensor(found)


SAYS = {
    "everything": lambda n: torch.ones(B, 1),
    "a-thousand": lambda n: torch.full((B, 1), 1e3),
    "negative": lambda n: torch.full((B, 1), -1e3),
    "infinite": lambda n: torch.full((B, 1), math.inf),
    "nan": lambda n: torch.full((B, 1), math.nan),
    "some-nan": lambda n: torch.tensor([[1.0], [math.nan], [1.0], [-1.0], [math.inf], [0.0]]),
    "by-tensor": lambda n: torch.full((B, 2), 50.0),
    "one-tensor-nan": lambda n: torch.tensor([[1.0, math.nan]]).expand(B, 2),
    "one-tensor-negative": lambda n: torch.tensor([[1.0, -7.0]]).expand(B, 2),
    "too-little-by-half": lambda n: 2.0 / n.total().unsqueeze(1),
}


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("scale", [3.0, 1e-15, 1e15])
def test_no_row_reaches_further_than_promised(says, scale):
    moved = moves(Rule(SAYS[says], Sensitivity(l2=1.0)), gradients(scale))
    assert bool((moved <= 1 + 1e-5).all())


@pytest.mark.parametrize("says", SAYS)
@pytest.mark.parametrize("share", [EqualShare(), LeastNoise()], ids=str)
def test_with_units_the_reach_is_that_of_the_products(says, share):
    sensitivity = sd.Layerwise([0.6, 0.8], share).rule(None, list).sensitivity
    assert bool((moves(Rule(SAYS[says], sensitivity), gradients()) <= sensitivity.l2 * (1 + 1e-5)).all())


def test_an_l1_promise_is_kept_through_the_dimension():
    sensitivity = Sensitivity(l2=1.0, l1=1.0, dimension=17)
    grads = gradients()
    total = sum_clipped((grads,), Rule(lambda n: torch.eye(B)[:, :1], sensitivity)).total
    assert sum(float(t.abs().sum()) for t in total.values()) <= 1 + 1e-5


@pytest.mark.parametrize(
    "clipping", [sd.Flat(1.0), sd.Normalised(1.0), sd.Automatic(1.0), sd.PSAC(1.0), sd.Layerwise([0.6, 0.8])], ids=str
)
def test_weighers_that_keep_their_promise_keep_their_bits(clipping):
    norms, rule = gradients().norms(), clipping.rule(None, list)
    weights = rule.weights(norms)
    assert bound_weights(weights, norms, rule.sensitivity, lambda: SIZES) is weights


def test_what_has_no_proof_is_left_alone():
    grads = gradients()
    total = sum_clipped((grads,), Rule(lambda n: torch.full((B, 1), -2.0), Unproven("it says so", 1.0))).total
    assert torch.allclose(total["b"], -2 * grads.rows["b"].sum(0))


def test_a_weight_for_a_gradient_of_no_length_cannot_be_without_bound():
    grads = Materialised({"a": torch.full((1, 4), 1e-25)}, torch.zeros(1))
    total = sum_clipped((grads,), Rule(lambda n: torch.full((1, 1), 1e30), Sensitivity(l2=1.0))).total
    assert total["a"].norm() <= 1


@pytest.mark.parametrize("n", [2, 3, 64, 5000])
def test_functions_of_single_rows_pass(n):
    rng, norms = Rng.from_seed(1), Norms(torch.rand(n, 3) + 0.1, ("a", "b", "c"))
    for clipping in (sd.Flat(1.0), sd.Normalised(1.0), sd.BandPass(1.0, 0.5), sd.Layerwise([1.0, 2.0, 3.0])):
        assert works_row_by_row(clipping.rule(None, list).weights, norms, rng)
    quantile = sd.AdaptiveQuantile(1.0, 0.5, 1.0)
    assert works_row_by_row(quantile.rule(1.0, list).tally, norms, rng)
    assert works_row_by_row(Band(0.1, 0.5, 1.0), np.linspace(0, 1, n), rng)


@pytest.mark.parametrize("n", [2, 3, 64, 5000])
def test_statistics_over_rows_are_found_out(n):
    rng, norms = Rng.from_seed(1), Norms(torch.rand(n, 3) + 0.1, ("a", "b", "c"))
    for weights in (
        lambda r: r.total().max() / r.total()[:, None],
        lambda r: 1 / r.total().mean().expand(len(r.squared), 1),
        lambda r: (r.total() > r.total().median()).double()[:, None] + 1e-3 * r.total().min(),
        lambda r: torch.arange(len(r.squared))[:, None] + 1.0,
    ):
        assert not works_row_by_row(weights, norms, rng)


def test_a_rate_that_looks_at_all_lengths_is_refused_with_the_cure():
    def rate(lengths):
        return 0.5 * lengths / lengths.max()

    torch.manual_seed(0)
    data = torch.utils.data.TensorDataset(torch.randn(100, 4))
    private = sd.Private(nn.Linear(4, 2), lambda m, x: m(x).sum(1), sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)))
    with pytest.raises(Refusal, match=r"(?s)other records.*public data"):
        next(private.draws(data, ByLength(rate, most=0.5), 1, expected_batch=5.0))


def test_a_vector_that_looks_at_all_records_is_refused_with_the_cure():
    for _ in range(20):
        rows = torch.randn(100, 4)
        for of in (lambda x: x - x.mean(0), lambda x: x / x.abs().max(), lambda x: x.flip(0)):
            with pytest.raises(Refusal, match="other records"):
                ClippedSum(1.0, sd.Gaussian(1.0), of).total(rows)
    assert ClippedSum(1.0, sd.Gaussian(1.0), lambda x: x.square().cumsum(1)).total(rows).shape == (4,)


def test_a_rule_that_follows_the_lengths_it_has_seen_is_found_out():
    """All records of this run are long, where the rule gives what flat clipping does; it moves when a batch of short ones
    comes.

    A try finds it out with a probability above a third: one factor in 10⁻³ to 10³ for all lengths of about 2 makes them
    shorter than 1. So 30 batches miss it with a probability below 0.65³⁰ = 2.4e-6.
    """
    bound_so_far = [1.0]

    def weights(norms: Norms) -> torch.Tensor:
        bound_so_far[0] = min(1.0, 0.9 * bound_so_far[0] + 0.1 * float(norms.total().mean()))
        return (bound_so_far[0] / norms.total()).clamp(max=1.0).unsqueeze(1)

    watch = RowwiseWatch()
    watched = watch(weights)
    torch.manual_seed(0)
    for _ in range(30):
        watched(Norms(1.5 + torch.rand(40, 2), ("a", "b")))
    assert watch.is_broken


def test_a_users_rule_that_works_row_by_row_is_not_accused():
    watch = RowwiseWatch()
    watched = watch(lambda norms: (1.0 / norms.total()).clamp(max=1.0).unsqueeze(1))
    torch.manual_seed(0)
    for _ in range(300):
        watched(Norms(torch.rand(7, 2) * 10 ** (8 * torch.rand(7, 1) - 4), ("a", "b")))
    assert watch.is_watching
    assert not watch.is_broken


def test_without_a_bound_every_record_counts_fully_whatever_its_length():
    """C / √s is infinity times 0 for an infinite norm: that record would become one that is not a number."""
    norms = Norms(torch.tensor([[0.0], [4.0], [math.inf]]), ("a",))
    assert sd.Flat(math.inf).rule(None, list).weights(norms).flatten().tolist() == [1.0, 1.0, 1.0]
