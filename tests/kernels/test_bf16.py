"""Compiled products and Gram sums of bfloat16: the definition's, for any shape, stride and division of the work."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor

from sordino.kernels import bf16_gram, bf16_product, build
from sordino.kernels.bf16_gram import LowGrams
from sordino.kernels.bf16_product import LowProducts
from tests.kernels.libraries import library

EPS = torch.finfo(torch.float32).eps
quick = settings(max_examples=40, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def made(of, functions, kind):
    found = library(of, functions)
    if not found.sordino_level(1):
        pytest.skip("this processor does not multiply bfloat16")
    return kind(found, 1)


@pytest.fixture
def products() -> LowProducts:
    return made(build.BF16_PRODUCT, bf16_product.FUNCTIONS, LowProducts)


@pytest.fixture
def grams() -> LowGrams:
    return made(build.BF16_GRAM, bf16_gram.FUNCTIONS, LowGrams)


def random(*shape: int, strided: bool = False) -> Tensor:
    """Rows that begin anywhere, or one after the other."""
    b, t, n = shape
    return torch.randn(b, t + strided, n + 3 * strided).bfloat16()[:, :t, strided : n + strided]


def rows_of(g: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
    """In float64, and the same of absolute values: roundings are relative to those."""
    return g.double().mT @ a.double(), g.double().abs().mT @ a.double().abs()


def close(found: Tensor, wanted: Tensor, room: Tensor) -> bool:
    return bool(((found - wanted).abs() <= 16 * EPS * room).all())


shapes = (st.integers(1, 4), st.integers(1, 600), st.integers(1, 40), st.integers(1, 70), st.booleans())


@quick
@given(*shapes, st.integers(1, 3), st.integers(0, 1))
def test_sums_are_those_of_the_definition(products, b, t, p, d, strided, threads, beta):
    g, a, w = random(b, t, p, strided=strided), random(b, t, d, strided=strided), torch.randn(b)
    out = torch.randn(p, d + 3 * strided)[:, :d]
    before = out.double() * beta
    products.add_weighted_product(g, a, w, out, beta, threads)
    rows, room = rows_of(g, a)
    each = w.double()[:, None, None]
    assert close(out, before + (rows * each).sum(0), before.abs() + (room * each.abs()).sum(0))


@quick
@given(*shapes, st.integers(1, 3))
def test_rows_and_their_norms_are_those_of_the_definition(products, b, t, p, d, strided, threads):
    g, a = random(b, t, p, strided=strided), random(b, t, d, strided=strided)
    out = torch.full((b + 1, p, d), 7.0)
    squared = products.compute_rows(g, a, out[:b], threads)
    assert close(out[:b], *rows_of(g, a))
    torch.testing.assert_close(squared.double(), out[:b].double().square().sum((1, 2)), rtol=1e-6, atol=0.0)
    assert bool((out[b] == 7.0).all())


@quick
@given(st.integers(1, 4), st.integers(1, 600), st.integers(1, 140), st.booleans(), st.integers(1, 3))
def test_sums_over_positions_are_those_of_the_definition(products, b, t, p, strided, threads):
    g = random(b, t, p, strided=strided)
    g[0, 0, 0] = 1e-39  # read as it is: there is no product here
    assert close(products.sum_over_positions(g, threads), g.double().sum(1), g.double().abs().sum(1))


@quick
@given(st.integers(1, 4), st.integers(1, 70), st.integers(1, 300), st.integers(1, 70), st.booleans(), st.integers(1, 3))
def test_gram_sums_are_those_of_the_definition(grams, b, t, p, d, strided, threads):
    g, a = random(b, t, p, strided=strided), random(b, t, d, strided=strided)
    found = grams(g, [a], threads, 0.25)[:, 0]
    pairs = [x.double() @ x.double().mT for x in (g, a)]
    product, lengths = pairs[0] * pairs[1], [x.diagonal(dim1=1, dim2=2) for x in pairs]
    room = product.diagonal(dim1=1, dim2=2).sqrt().sum(1).square()
    assert close(found[:, 0], product.sum((1, 2)), room)
    assert close(found[:, 1], (lengths[0] * lengths[1]).sum(1), room)
    long = ((lengths[0] + 0.25 * p).sqrt() * (lengths[1] + 0.25 * d).sqrt()).sum(1)
    torch.testing.assert_close(found[:, 2], long, rtol=1e-6, atol=0.0)


def test_gram_sums_of_wide_rows_do_not_read_low(grams):
    """Small squares are lost beside a large sum where too many are added up in one run: 1e-6 for 512 of them."""
    g, a = random(8, 16, 4000), random(8, 16, 64)
    pairs = [x.double() @ x.double().mT for x in (g, a)]
    wanted = (pairs[0] * pairs[1]).sum((1, 2))
    assert bool((grams(g, [a])[:, 0, 0] >= wanted * (1 - 4e-7)).all())


@pytest.mark.parametrize(("t", "p", "d"), [(128, 800, 70), (513, 541, 33), (31, 100, 900)])
def test_no_division_of_the_work_changes_a_bit(products, grams, t, p, d):
    g, a, w = random(4, t, p), random(4, t, d), torch.rand(4)
    sums, rows, squares, norms = [], [], [], []
    for threads in (1, 2, 3, 4):
        sums.append(torch.empty(p, d))
        products.add_weighted_product(g, a, w, sums[-1], 0, threads)
        rows.append(torch.empty(4, p, d))
        squares.append(products.compute_rows(g, a, rows[-1], threads))
        norms.append(grams(g, [a], threads))
    for found in (sums, rows, squares, norms):
        assert all(torch.equal(found[0], other) for other in found[1:])
    alone = torch.empty(1, p, d)
    assert torch.equal(products.compute_rows(g[2:3], a[2:3], alone), squares[0][2:3])  # nor do the other samples
    assert torch.equal(alone, rows[0][2:3])
    assert torch.equal(grams(g[2:3], [a[2:3]]), norms[0][2:3])
    assert close(sums[0], *[(x * w.double()[:, None, None]).sum(0) for x in rows_of(g, a)])


def test_nothing_beside_the_result_is_written(products):
    whole = torch.full((20, 60), 7.0)
    products.add_weighted_product(random(3, 100, 13), random(3, 100, 37), torch.rand(3), whole[3:16, 4:41], 0, 2)
    outside = torch.ones_like(whole, dtype=torch.bool)
    outside[3:16, 4:41] = False
    assert bool((whole[outside] == 7.0).all())
    assert bool((whole[~outside] != 7.0).all())


def test_weights_are_not_rounded(products):
    """1 + 2⁻²⁰ is 1 in bfloat16."""
    g, a, w = torch.ones(1, 16, 12).bfloat16(), torch.ones(1, 16, 16).bfloat16(), torch.tensor([1 + 2.0**-20])
    out = torch.empty(12, 16)
    products.add_weighted_product(g, a, w, out, 0)
    assert bool((out == 16 * (1 + 2.0**-20)).all())


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_a_value_that_is_not_finite_stays_in_its_own_sample(products, grams, value):
    g, a = random(3, 21, 13), random(3, 21, 21)
    clean, wanted = torch.empty(3, 13, 21), grams(g, [a])
    products.compute_rows(g, a, clean)
    a[1, 20, 20] = value
    rows = torch.empty(3, 13, 21)
    squared, sums, others = products.compute_rows(g, a, rows), grams(g, [a]), torch.tensor([0, 2])
    assert not squared[1].isfinite()
    assert not sums[1].isfinite().all()
    assert torch.equal(rows[others], clean[others])
    assert torch.equal(sums[others], wanted[others])


def test_values_too_small_are_zero_everywhere(products, grams):
    """1e-39 is no normal number: the instruction reads nothing, so rows, sums and Gram sums agree on it."""
    a, g = torch.full((1, 16, 32), 1e-39).bfloat16(), torch.full((1, 16, 32), 1e30).bfloat16()
    assert float(a.float().max()) > 0
    rows, total = torch.empty(1, 32, 32), torch.empty(32, 32)
    assert float(products.compute_rows(g, a, rows)[0]) == 0.0
    products.add_weighted_product(g, a, torch.ones(1), total, 0)
    assert float(rows.abs().max()) == float(total.abs().max()) == 0.0


def test_wrong_kernels_are_not_trusted(products, grams):
    class Rounds(LowProducts):
        def add_weighted_product(self, g, a, w, out, beta, threads=1):
            super().add_weighted_product(g, a, w.bfloat16().float(), out, beta, threads)

    class Loses(LowGrams):
        def __call__(self, g, inputs, threads=1, floor=0.0):
            return super().__call__(g[:, :-1], [a[:, :-1] for a in inputs], threads, floor)

    assert bf16_product.agrees_with_torch(products)
    assert not bf16_product.agrees_with_torch(Rounds(products.library, 1))
    assert bf16_gram.agrees_with_torch(grams)
    assert not bf16_gram.agrees_with_torch(Loses(grams.library, 1))


def test_without_the_instruction_the_library_says_so():
    for of, functions in ((build.BF16_PRODUCT, bf16_product.FUNCTIONS), (build.BF16_GRAM, bf16_gram.FUNCTIONS)):
        assert library(of, functions).sordino_level(0) == 0
