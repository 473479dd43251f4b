"""The compiled weighted sum of a linear map's gradients: the definition's in float64, for any shape, stride and threads."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.gradients import Captured
from sordino.gradients.rules import output
from sordino.kernels import build
from sordino.kernels.products import LEVELS, Products, agrees, typed
from tests.compiled import library
from tests.gradients.oracle import same

EPS = torch.finfo(torch.float32).eps
quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class Willing(Products):
    """Takes small products too, and counts."""

    calls = 0

    def takes(self, g, a, out):
        return g.dtype == torch.float32

    def add(self, *args):
        Willing.calls += 1
        super().add(*args)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.fixture(params=range(len(LEVELS)), ids=LEVELS)
def kernel(request):
    found = typed(library(build.PRODUCT))
    if found.sordino_level(request.param) != request.param:
        pytest.skip("this processor has no such instructions")
    return Willing(found, request.param)


@pytest.fixture
def used(kernel, monkeypatch):
    Willing.calls = 0
    monkeypatch.setattr(output, "products", lambda: kernel)


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
        kernel.add(g, a, w, out, beta, threads)
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
    kernel.add(g, a, w, out, 0, 1)
    kernel.add(g, a, w, again, 0, 3)
    assert close(out, g, a, w, torch.zeros(p, d))
    assert torch.equal(out, again)


def test_nothing_beside_the_result_is_written(kernel):
    whole = torch.full((20, 30), 7.0)
    kernel.add(torch.randn(300, 13), torch.randn(300, 21), torch.rand(300), whole[3:16, 4:25], 0, 2)
    outside = torch.ones_like(whole, dtype=torch.bool)
    outside[3:16, 4:25] = False
    assert bool((whole[outside] == 7.0).all())


def test_a_wrong_kernel_is_not_trusted(kernel):
    class Wrong(Products):
        def add(self, g, a, w, out, beta, threads=1):
            super().add(g, a, w * (1 + 1e-4), out, beta, threads)

    assert agrees(kernel)
    assert not agrees(Wrong(kernel.library, kernel.level))


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
    monkeypatch.setattr(output.Output, "formula", lambda *_: "gram")
    monkeypatch.setattr("sordino.gradients.taken.at_once", lambda _: None, raising=False)
    same(model(), (torch.randn(shape),), backend=Captured())
    assert Willing.calls
