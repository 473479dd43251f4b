"""Compiled products of a linear map's gradients, summed or by sample: the definition's, for any shape and threads."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.kernels import build
from sordino.kernels.product import FUNCTIONS, Products, agrees_with_torch
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.formulas import output_gradient as output
from tests.kernels.libraries import levels
from tests.per_sample.oracle import same

EPS = torch.finfo(torch.float32).eps
quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class Willing(Products):
    """Takes small products too, and counts."""

    calls = 0

    def can_multiply(self, g, a, out):
        return g.dtype == torch.float32

    def can_make_rows(self, g, a):
        return g.dtype == torch.float32 and g.stride(2) == a.stride(2) == 1

    def add_weighted_product(self, *args):
        Willing.calls += 1
        super().add_weighted_product(*args)

    def compute_rows(self, *args):
        Willing.calls += 1
        return super().compute_rows(*args)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


kernel = levels(build.PRODUCT, FUNCTIONS, Willing)


@pytest.fixture
def used(kernel, monkeypatch):
    Willing.calls = 0
    monkeypatch.setattr(output, "load_products", lambda: kernel)


def close(found: Tensor, g: Tensor, a: Tensor, w: Tensor, before: Tensor) -> bool:
    """Up to the rounding of float32 sums: relative to the sum of absolute values."""
    wanted = before.double() + (g.double() * w.double()[:, None]).t() @ a.double()
    room = before.double().abs() + (g.double() * w.double()[:, None]).abs().t() @ a.double().abs()
    return bool(((found - wanted).abs() <= 16 * EPS * room).all())


@quick
@given(st.integers(0, 600), st.integers(1, 40), st.integers(1, 50), st.booleans(), st.integers(1, 3), st.integers(0, 1))
def test_sums_are_those_of_the_definition(kernel, rows, p, d, strided, threads, beta):
    g, a, out = (torch.randn(n, k + 3 * strided)[:, :k] for n, k in ((rows, p), (rows, d), (p, d)))
    w = torch.randn(rows)
    before = out.clone() if beta else torch.zeros(p, d)
    if rows:
        kernel.add_weighted_product(g, a, w, out, beta, threads)
        assert close(out, g, a, w, before)


@pytest.mark.parametrize(("rows", "p", "d"), [(513, 1300, 70), (256, 541, 33), (700, 100, 900)])
def test_products_larger_than_the_cache_and_threads_that_change_no_bit(kernel, rows, p, d):
    g, a, w, out, again = (
        torch.randn(rows, p),
        torch.randn(rows, d),
        torch.rand(rows),
        torch.empty(p, d),
        torch.empty(p, d),
    )
    kernel.add_weighted_product(g, a, w, out, 0, 1)
    kernel.add_weighted_product(g, a, w, again, 0, 3)
    assert close(out, g, a, w, torch.zeros(p, d))
    assert torch.equal(out, again)


def test_nothing_beside_the_result_is_written(kernel):
    whole = torch.full((20, 30), 7.0)
    kernel.add_weighted_product(torch.randn(300, 13), torch.randn(300, 21), torch.rand(300), whole[3:16, 4:25], 0, 2)
    outside = torch.ones_like(whole, dtype=torch.bool)
    outside[3:16, 4:25] = False
    assert bool((whole[outside] == 7.0).all())


def test_a_wrong_kernel_is_not_trusted(kernel):
    class Wrong(Products):
        def add_weighted_product(self, g, a, w, out, beta, threads=1):
            super().add_weighted_product(g, a, w * (1 + 1e-4), out, beta, threads)

    assert agrees_with_torch(kernel)
    assert not agrees_with_torch(Wrong(kernel.library, kernel.level))


def close_rows(rows: Tensor, squared: Tensor, g: Tensor, a: Tensor) -> bool:
    """Rows up to rounding; squared norms to a part in 1e6 of what these very rows have."""
    wanted, room = g.double().mT @ a.double(), g.double().abs().mT @ a.double().abs()
    right = bool(((rows - wanted).abs() <= 16 * EPS * room).all())
    return right and torch.allclose(squared.double(), rows.double().square().sum((1, 2)), rtol=1e-6, atol=0.0)


@quick
@given(st.integers(0, 5), st.integers(1, 600), st.integers(1, 40), st.integers(1, 50), st.booleans(), st.integers(1, 3))
def test_rows_and_their_norms_are_those_of_the_definition(kernel, b, t, p, d, strided, threads):
    g, a = (torch.randn(b, t + strided, k + 3 * strided)[:, :t, :k] for k in (p, d))
    rows = torch.full((b + 1, p, d), 7.0)
    squared = kernel.compute_rows(g, a, rows[:b], threads)
    assert close_rows(rows[:b], squared, g, a)
    assert bool((rows[b] == 7.0).all())


@pytest.mark.parametrize(("t", "p", "d"), [(128, 1300, 70), (513, 541, 33), (40, 100, 900)])
def test_rows_larger_than_the_cache_and_threads_that_change_no_bit(kernel, t, p, d):
    g, a, rows, again = torch.randn(3, t, p), torch.randn(3, t, d), torch.empty(3, p, d), torch.empty(3, p, d)
    squared = kernel.compute_rows(g, a, rows, 1)
    assert close_rows(rows, squared, g, a)
    assert torch.equal(squared, kernel.compute_rows(g, a, again, 3))
    assert torch.equal(rows, again)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_stays_in_its_own_sample(kernel, value):
    g, a, rows = torch.rand(3, 20, 13) + 1, torch.rand(3, 20, 21) + 1, torch.empty(3, 13, 21)
    a[1, 4, 20] = value
    squared = kernel.compute_rows(g, a, rows)
    assert not squared[1].isfinite()
    assert bool(squared[1].isnan()) == (value != float("inf"))
    others = torch.tensor([0, 2])
    assert close_rows(rows[others], squared[others], g[others], a[others])


class Second(nn.Module):
    """Positions first in memory."""

    def __init__(self):
        super().__init__()
        self.layer = nn.LSTM(6, 5)

    def forward(self, x):
        return self.layer(x.transpose(0, 1))[0].transpose(0, 1)


@pytest.mark.parametrize(
    ("model", "shape"),
    [(lambda: nn.Linear(6, 5), (7, 6)), (lambda: nn.Linear(6, 5), (7, 4, 6)), (Second, (7, 4, 6))],
    ids=("one position", "positions", "positions first"),
)
def test_layers_summed_by_it_are_the_loops(used, monkeypatch, model, shape):
    monkeypatch.setattr(output.OutputGradient, "choose_formula", lambda *_: "gram")
    monkeypatch.setattr("sordino.per_sample.engine.batch_result._FINDERS", [])
    same(model(), (torch.randn(shape),), backend=Captured())
    assert Willing.calls


@pytest.mark.parametrize("keep", [0, 1 << 20], ids=("made twice", "kept"))
@pytest.mark.parametrize(
    ("model", "shape"),
    [(lambda: nn.Linear(6, 5), (7, 4, 6)), (Second, (7, 4, 6))],
    ids=("positions", "positions first"),
)
def test_layers_whose_rows_it_makes_are_the_loops(used, monkeypatch, model, shape, keep):
    monkeypatch.setattr(output.OutputGradient, "choose_formula", lambda *_: "rows")
    monkeypatch.setattr("sordino.per_sample.engine.batch_result._FINDERS", [])
    same(model(), (torch.randn(shape),), backend=Captured(PerformanceOptions(keep_bytes=keep)))
    assert Willing.calls
