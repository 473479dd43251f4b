"""The compiled Gram sums: those of the definition in float64, for any shape, stride, number of inputs and threads."""

import math

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.kernels import build
from sordino.kernels.gram import FUNCTIONS, Grams, agrees_with_torch
from sordino.per_sample import Captured
from sordino.per_sample.formulas import output_gradient as output
from sordino.per_sample.formulas.matrix_product import Matmul
from sordino.per_sample.performance_options import PerformanceOptions
from tests.kernels.libraries import levels
from tests.per_sample.oracle import same

EPS = torch.finfo(torch.float32).eps
quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


kernel = levels(build.GRAM, FUNCTIONS, Grams)


@pytest.fixture
def forced(kernel, monkeypatch):
    monkeypatch.setattr(output, "load_grams", lambda: kernel)
    monkeypatch.setattr(output.OutputGradient, "choose_formula", lambda *_: "compiled")


def by_definition(g: Tensor, inputs: list[Tensor]) -> Tensor:
    found = []
    for a in inputs:
        product = torch.einsum("btp,bsp->bts", g.double(), g.double()) * torch.einsum(
            "btd,bsd->bts", a.double(), a.double()
        )
        diagonal = product.diagonal(dim1=1, dim2=2)
        found.append(torch.stack([product.sum((1, 2)), diagonal.sum(1), diagonal.sqrt().sum(1)], 1))
    return torch.stack(found, 1)


def close(found: Tensor, g: Tensor, inputs: list[Tensor]) -> bool:
    """Up to the rounding of float32 products: relative to the sum of absolute values, which bounds what may cancel."""
    whole = by_definition(g.abs(), [a.abs() for a in inputs])
    room = torch.cat([whole[:, :, :1], whole[:, :, :1], whole[:, :, 2:]], 2)
    return bool(((found - by_definition(g, inputs)).abs() <= 8 * EPS * room).all())


@quick
@given(
    st.integers(1, 5), st.integers(1, 30), st.integers(1, 40), st.lists(st.integers(1, 40), min_size=1, max_size=3),
    st.sampled_from(("plain", "positions first", "columns of more", "every second")), st.integers(1, 3),
)  # fmt: skip
def test_sums_are_those_of_the_definition(kernel, b, t, p, widths, layout, threads):
    def made(n: int) -> Tensor:
        if layout == "positions first":
            return torch.randn(t, b, n).transpose(0, 1)
        if layout == "columns of more":
            return torch.randn(b, t, n + 5)[:, :, 3 : n + 3]
        return torch.randn(b, 2 * t, 2 * n)[:, ::2, ::2] if layout == "every second" else torch.randn(b, t, n)

    g, inputs = made(p), [made(n) for n in widths]
    assert close(kernel(g, inputs, threads), g, inputs)


@pytest.mark.parametrize(("t", "p", "d"), [(129, 700, 40), (100, 40, 1100), (260, 512, 8)])
def test_samples_larger_than_the_cache(kernel, t, p, d):
    g, a = torch.randn(3, t, p), torch.randn(3, t, d)
    assert close(kernel(g, [a], threads=2), g, [a])


def test_a_sample_does_not_touch_another(kernel):
    """Not through what is left of it in the copies, and not through values that are not finite."""
    g, a = torch.randn(5, 9, 11), torch.randn(5, 9, 3)
    alone = torch.cat([kernel(g[i : i + 1], [a[i : i + 1]]) for i in range(5)])
    assert torch.equal(kernel(g, [a]), alone)
    g[2, 8, 10], a[3, 0, 0] = torch.nan, torch.inf
    found = kernel(g, [a])
    assert not found[2:4, 0, 0].isfinite().any()
    assert torch.equal(found[[0, 1, 4]], alone[[0, 1, 4]])


def test_lengths_have_a_floor(kernel):
    """What vanishes in float32 still counts, for every element, and rows beyond the last add next to nothing."""
    g, a, floor = torch.full((2, 5, 8), 1e-30), torch.randn(2, 5, 3), 1e-20
    wanted = (a.square().sum(2) + 3 * floor).sqrt().mul(math.sqrt(8 * floor)).sum(1).double()
    assert torch.allclose(kernel(g, [a], floor=floor)[:, 0, 2], wanted, rtol=1e-5)


@quick
@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 23)), max_size=7), st.integers(1, 40), st.integers(1, 40),
    st.sampled_from(("plain", "columns of more", "every second")), st.integers(1, 3),
)  # fmt: skip
def test_stretches_of_rows_are_samples_of_their_own(kernel, ranges, p, d, layout, threads):
    """Of any length, in any order, also a short one after a long one, and the same bits whatever others there are."""

    def made(n: int) -> Tensor:
        if layout == "every second":
            return torch.randn(64, 2 * n)[:, ::2]
        return torch.randn(64, n + 5)[:, 3 : n + 3] if layout == "columns of more" else torch.randn(64, n)

    g, a = made(p), made(d)
    found = kernel.sum_stretches(g, a, ranges, threads)
    assert found.shape == (len(ranges), 3)
    for (first, count), one in zip(ranges, found, strict=True):
        own = g[None, first : first + count], [a[None, first : first + count]]
        assert close(one.view(1, 1, 3), *own)
        assert torch.equal(one, kernel.sum_stretches(g, a, [(first, count)])[0])
        if count:
            assert torch.equal(one, kernel(*own)[0, 0])


def test_no_samples_and_shared_rows(kernel):
    assert kernel(torch.randn(0, 4, 3), [torch.randn(0, 4, 2)]).shape == (0, 1, 3)
    g, a = torch.randn(1, 6, 5).expand(4, 6, 5), torch.randn(4, 1, 3).expand(4, 6, 3)
    assert close(kernel(g, [a]), g, [a])


def test_a_wrong_kernel_is_not_trusted(kernel):
    class Wrong(Grams):
        def __call__(self, g, inputs, threads=1, floor=0.0):
            return super().__call__(g, inputs, threads, floor) * (1 + 1e-4)

    assert agrees_with_torch(kernel)
    assert not agrees_with_torch(Wrong(kernel.library, kernel.level))


@pytest.mark.parametrize("model", [
    lambda: nn.Linear(6, 5),
    lambda: nn.LSTM(6, 5, batch_first=True),
    lambda: nn.MultiheadAttention(6, 2, batch_first=True),
], ids=("linear", "lstm", "attention"))  # fmt: skip
def test_layers_measured_by_it_are_the_loops(forced, model):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = model()

        def forward(self, x):
            out = self.layer(x, x, x) if isinstance(self.layer, nn.MultiheadAttention) else self.layer(x)
            return out[0] if isinstance(out, tuple) else out

    same(Net(), (torch.randn(7, 4, 6),), backend=Captured(PerformanceOptions(scratch_bytes=1024)))


def test_sums_that_cancel_are_measured_again(forced):
    """Two positions with nearly opposite products: the Gram sum is a millionth of its diagonal."""
    a = torch.ones(4, 2, 3)
    g = torch.tensor([1.0, -1.0]).view(1, 2, 1) * torch.ones(4, 2, 5)
    g[1:, 1] += 1e-3 * torch.randn(3, 5)
    wanted = torch.bmm(g.double().mT, a.double()).square().sum((1, 2))
    found = Matmul(a, g).measure_squared_norms(PerformanceOptions())
    vanished = 1e-36  # squares too small for float32 are counted, so that what cancels to nothing is not quite nothing
    assert torch.allclose(found.double(), wanted, rtol=1e-4, atol=vanished)
    by_gram = output.load_grams()(g, [a])[:, 0, 0]
    assert not torch.allclose(by_gram[1:], wanted[1:], rtol=1e-4, atol=0), "nothing cancelled"
