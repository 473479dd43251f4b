"""The same attacks on whole backends: one record moves a weighed sum by no more than the bound."""

import pytest
import torch
from torch import nn

from sordino import Flat, Normalised
from sordino.clipping.clipping_rule import sum_clipped
from sordino.per_sample import Captured, Loop, PerformanceOptions, Vmap
from sordino.per_sample.materialised import Materialised
from sordino.release.rounding import rounding_slack
from tests.honesty_numerics.test_norms import CASES, B, D, P, factors


class Positions(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(D, P, bias=False)

    def forward(self, x):
        return self.layer(x)


def weighted(model, x, g):
    return (model(x) * g).flatten(1).sum(1)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    "backend",
    [Captured(), Captured(PerformanceOptions(two_pass=True)), Vmap(), Loop()],
    ids=["captured", "two-pass", "vmap", "loop"],
)
@pytest.mark.parametrize("clipping", [Flat(1.0), Normalised(1.0)], ids=["flat", "normalised"])
def test_one_record_moves_a_weighed_sum_by_no_more_than_the_bound(clipping, backend, case):
    torch.manual_seed(0)
    model = Positions()
    a, g = factors(case)
    rule, sums = clipping.rule(None, list), []
    backend.per_sample(model, weighted, (a[1:], g[1:])).norms()  # verified on records that are not made for it
    for batch in ((a, g), (a[1:], g[1:])):
        total = sum_clipped((backend.per_sample(model, weighted, batch),), rule).total
        sums.append(total["layer.weight"].double().clone())
    assert (sums[0] - sums[1]).norm() <= 1 + rounding_slack(B)


class PositionsFirst(nn.Module):
    """Positions come first in memory, so all records' first positions are added up before the second ones."""

    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(48, 48, bias=False)

    def forward(self, x, g):
        return (self.layer(x.transpose(0, 1).contiguous()) * g.transpose(0, 1).contiguous()).sum((0, 2))


@pytest.mark.parametrize("two_pass", [False, True])
@pytest.mark.parametrize("v", [2.0**10, 2.0**20, 2.0**34])
def test_a_record_of_v_and_minus_v_does_not_wipe_out_the_others(v, two_pass):
    """64 records of nearly one gradient, and one whose two positions cancel: 32 bounds of their sum were lost."""
    torch.manual_seed(0)
    model, backend = PositionsFirst(), Captured(PerformanceOptions(two_pass=two_pass, measure=False))
    x, g = torch.ones(65, 2, 48) / 48**0.5 + 1e-3 * torch.randn(65, 2, 48), (torch.randn(48) / 96).expand(65, 2, 48)
    x[0], g = 1.0, g.clone()
    g[0, 0] = v * torch.rand(48)
    g[0, 1] = -g[0, 0]
    rule, sums = Flat(1.0).rule(None, list), []
    for batch in ((x, g), (x[1:], g[1:])):
        total = sum_clipped((backend.per_sample(model, lambda m, *given: m(*given), batch),), rule).total
        sums.append(total["layer.weight"].double().clone())
    assert (sums[0] - sums[1]).norm() <= 1 + rounding_slack(65)


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(D))

    def forward(self, x, y):
        return (x * self.scale).sum(1) + (y * self.scale).sum(1)


@pytest.mark.parametrize("two_pass", [False, True])
def test_two_uses_that_cancel_leave_the_others_as_they_are(two_pass):
    torch.manual_seed(0)
    model, backend = Twice(), Captured(PerformanceOptions(two_pass=two_pass))
    x, y = torch.randn(B, D) / D, torch.randn(B, D) / D
    backend.per_sample(model, lambda m, p, q: m(p, q), (x, y)).norms()
    x[0] = 2.0**34
    y[0] = -(2.0**34) + 2.0**12
    rule, sums = Flat(1.0).rule(None, list), []
    for batch in ((x, y), (x[1:], y[1:])):
        total = sum_clipped((backend.per_sample(model, lambda m, p, q: m(p, q), batch),), rule).total
        sums.append(total["scale"].double().clone())
    assert (sums[0] - sums[1]).norm() <= 1 + rounding_slack(B)


def test_products_of_small_layers_that_vanish_are_not_lifted():
    """‖a‖² = 1e-44 is nothing in float32 and ‖g‖² = 1e34 a lot: their product is 1e-10, not 0."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(D, 5, bias=False), nn.ReLU(), nn.Linear(5, P))
    x = torch.randn(B, D)
    backend = Captured()
    loss = lambda m, p, s: m(p).sum(1) * s  # noqa: E731
    backend.per_sample(model, loss, (x, torch.ones(B))).norms()
    x[0] *= 1e-22
    s = torch.ones(B)
    s[0] = 1e17
    grads = backend.per_sample(model, loss, (x, s))
    norms = grads.norms().squared.double().sqrt()
    one = grads.weighted_sum(torch.eye(B)[:, :1])
    for k, name in enumerate(grads.norms().names):
        assert one[name].double().norm() <= (1 + rounding_slack(1)) * norms[0, k]


def test_held_rows_whose_squares_vanish_are_not_low():
    row = torch.full((1, 50_000), 3e-23)
    assert Materialised({"w": row}, torch.zeros(1)).norms().total() >= row.double().norm()


def test_a_first_batch_of_records_without_a_gradient_or_with_one_that_cancels_is_accepted():
    """Raised norms are not autograd's, and are not compared with them."""
    torch.manual_seed(0)
    model = Positions()
    a, g = factors("huge-cancelling")
    g[1] = 0
    for backend in (Captured(), Captured(PerformanceOptions(two_pass=True))):
        norms = backend.per_sample(model, lambda m, *given: weighted(m, *given), (a, g)).norms().total()
        assert bool(norms.isfinite().all())
        assert norms[1] < 1e-15
    assert norms[0] > 1e6  # by the second, which does not sum the rows it measured
