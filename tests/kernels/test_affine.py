"""The compiled linear map: the definition's in float64, for any shape, stride and threads, and torch elsewhere."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.kernels import build
from sordino.kernels.affine import FUNCTIONS, Affines, agrees_with_torch
from sordino.kernels.processor import torch_computes_sixteen_at_once
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.formulas import choice_by_shape
from sordino.per_sample.formulas import matrix_product as mapped
from sordino.per_sample.formulas.formula_timing import Stopwatch
from sordino.per_sample.formulas.workspace import Workspace
from tests.kernels.libraries import levels
from tests.per_sample.oracle import same

EPS = torch.finfo(torch.float32).eps
quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


class Willing(Affines):
    """Takes small products too, and counts."""

    calls = 0

    def can_multiply(self, x, m):
        return x.dtype == torch.float32 and x.stride(1) == 1 and min(*x.shape, *m.shape) > 0

    def __call__(self, *args):
        Willing.calls += 1
        return super().__call__(*args)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


kernel = levels(build.AFFINE, FUNCTIONS, Willing)


@pytest.fixture
def used(kernel, monkeypatch):
    """Every linear map goes through it."""
    Willing.calls = 0
    monkeypatch.setattr(mapped, "load_affines", lambda: kernel)
    monkeypatch.setattr(mapped, "_SMALL", 0)
    known = Stopwatch.known_choice
    always = lambda self, key: "compiled" if str(key[0]).startswith("mapped") else known(self, key)  # noqa: E731
    monkeypatch.setattr(Stopwatch, "known_choice", always)


def close(found: Tensor, x: Tensor, m: Tensor, bias: Tensor | None) -> bool:
    """Up to the rounding of float32 sums: relative to the sum of absolute values."""
    start = torch.zeros(m.shape[1]) if bias is None else bias
    wanted = x.double() @ m.double() + start.double()
    room = x.double().abs() @ m.double().abs() + start.double().abs()
    return bool(((found - wanted).abs() <= 16 * EPS * room).all())


@quick
@given(
    st.integers(1, 60),
    st.integers(1, 600),
    st.integers(1, 70),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(1, 3),
)
def test_products_are_those_of_the_definition(kernel, rows, k, n, turned, strided, biased, threads):
    x = torch.randn(rows, k + 3 * strided)[:, :k]
    m = torch.randn(n, k + 5 * strided)[:, :k].t() if turned else torch.randn(k, n + 5 * strided)[:, :n]
    bias = torch.randn(n) if biased else None
    assert close(kernel(x, m, bias, threads), x, m, bias)


@pytest.mark.parametrize(("rows", "k", "n"), [(600, 520, 130), (257, 2050, 530), (300, 70, 2100), (20, 300, 1100)])
@pytest.mark.parametrize("turned", [False, True])
def test_products_larger_than_the_cache_and_threads_that_change_no_bit(kernel, rows, k, n, turned):
    x, bias = torch.randn(rows, k), torch.randn(n)
    m = torch.randn(n, k).t() if turned else torch.randn(k, n)
    found = kernel(x, m, bias, 1)
    assert close(found, x, m, bias)
    assert torch.equal(found, kernel(x, m, bias, 3))


def test_a_row_does_not_depend_on_the_others(kernel):
    """Not a bit, so that a sample is worth the same in every lot; and what is not finite stays in its row."""
    x, m = torch.randn(601, 300), torch.randn(300, 40)
    whole = kernel(x, m)
    x[599] = torch.nan
    again = kernel(x, m)
    assert bool(again[599].isnan().all())
    assert torch.equal(again[:599], whole[:599])
    assert torch.equal(again[600], whole[600])
    assert torch.equal(kernel(x[7:90], m), whole[7:90])


def test_a_wrong_kernel_is_not_trusted(kernel):
    class Wrong(Affines):
        def __call__(self, x, m, bias=None, threads=1):
            return super().__call__(x, m, bias, threads) * (1 + 1e-4)

    assert agrees_with_torch(kernel)
    assert not agrees_with_torch(Wrong(kernel.library, kernel.level))


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.MultiheadAttention(6, 2, batch_first=True)

    def forward(self, x):
        return self.layer(x, x, x)[0]


@pytest.mark.parametrize(
    ("model", "shape"),
    [
        (lambda: nn.Linear(6, 5), (7, 6)),
        (lambda: nn.Sequential(nn.Linear(6, 9), nn.ReLU(inplace=True), nn.Linear(9, 5, bias=False)), (7, 6)),
        (lambda: nn.Sequential(nn.Linear(6, 9), nn.GELU(), nn.Linear(9, 5)), (7, 4, 6)),
        (Attention, (7, 4, 6)),
    ],
    ids=("one layer", "in place", "positions", "attention"),
)
@pytest.mark.parametrize("two_pass", [False, True], ids=("kept", "two passes"))
def test_layers_computed_by_it_are_the_loops(used, model, shape, two_pass):
    same(model(), (torch.randn(shape),), backend=Captured(PerformanceOptions(two_pass=two_pass)))
    assert Willing.calls


def test_other_types_and_autocast_are_torchs(used):
    same(nn.Linear(6, 5).double(), (torch.randn(7, 6, dtype=torch.float64),), backend=Captured())
    x, layer = torch.randn(7, 6), nn.Linear(6, 5)
    with torch.autocast("cpu", torch.bfloat16):
        y = mapped.run_linear_map(x, layer.weight, layer.bias, 7, Workspace())
    assert y.dtype == torch.bfloat16
    assert not Willing.calls


def test_a_gradient_without_dense_rows_is_torchs(used):
    x, layer = torch.randn(7, 6, requires_grad=True), nn.Linear(6, 5)
    y = mapped.run_linear_map(x, layer.weight.detach(), layer.bias.detach(), 7, Workspace())
    calls = Willing.calls
    (found,) = torch.autograd.grad(y, x, torch.ones(()).expand(7, 5))
    assert calls == Willing.calls
    assert torch.allclose(found, layer.weight.sum(0).expand(7, 6))


def test_the_choice_is_by_timing_or_by_the_processors_vectors():
    assert choice_by_shape.choose_product_code("AVX2", wide=False) == "compiled"
    assert (
        choice_by_shape.choose_product_code(
            "AVX512", wide=torch_computes_sixteen_at_once("AVX512", {"vendor_id": "GenuineIntel"})
        )
        == "torch"
    )
    zen4 = {"vendor_id": "AuthenticAMD", "cpu family": "25"}  # vectors of sixteen in halves
    assert (
        choice_by_shape.choose_product_code("AVX512", wide=torch_computes_sixteen_at_once("AVX512", zen4)) == "compiled"
    )
    zen5 = {"vendor_id": "AuthenticAMD", "cpu family": "26"}  # in one piece, which torch's products make no use of
    assert (
        choice_by_shape.choose_product_code("AVX512", wide=torch_computes_sixteen_at_once("AVX512", zen5)) == "compiled"
    )
    assert choice_by_shape.choose_product_code("DEFAULT", wide=False) == "torch"
    workspace = Workspace()
    x, layer = torch.randn(512, 512), nn.Linear(512, 512)
    if mapped.load_affines() is None:
        pytest.skip("nothing was compiled")
    found = mapped.run_linear_map(x, layer.weight.detach(), layer.bias.detach(), 512, workspace)
    assert torch.allclose(found, layer(x), rtol=1e-4, atol=1e-4)
    assert [key.split("'")[1] for key in workspace.stopwatch.export_choices()] == ["mapped"]
