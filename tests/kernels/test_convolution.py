"""The compiled convolution kernels: the framework's results, for every option, layout, level and number of threads."""

from dataclasses import replace

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.kernels import build, correlation, depthwise
from sordino.kernels import convolution as compiled
from sordino.kernels.correlation import Correlations
from sordino.kernels.sample_gradients import FUNCTIONS, SampleGradients
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.formulas import convolution_pass as correlated
from sordino.per_sample.formulas import convolution_rows as filters
from sordino.per_sample.formulas import convolution_weight as convolution
from sordino.per_sample.formulas.convolution_geometry import Geometry
from sordino.per_sample.formulas.formula_timing import Stopwatch
from sordino.per_sample.formulas.workspace import Workspace
from tests.kernels.libraries import library as of_these_sources
from tests.per_sample.oracle import same


@pytest.fixture(scope="module")
def library():
    return of_these_sources(build.CONVOLUTION, FUNCTIONS)


@pytest.fixture(scope="module")
def alone():
    return of_these_sources(build.DEPTHWISE, FUNCTIONS)


@pytest.fixture(scope="module")
def passes():
    return of_these_sources(build.CORRELATION, correlation.FUNCTIONS)


@pytest.fixture(params=[0, 1], ids=["portable", "AVX2"])
def kernel(request, library):
    if library.sordino_level(request.param) != request.param:
        pytest.skip("this processor has no such instructions")
    return SampleGradients(library, request.param)


@st.composite
def layers(draw):
    """An input, an output gradient and the options between them."""
    rank, groups = draw(st.integers(1, 2)), draw(st.sampled_from([1, 1, 1, 2, 3]))
    pick = lambda low, high: tuple(draw(st.integers(low, high)) for _ in range(rank))  # noqa: E731
    geometry = Geometry(pick(1, 4), pick(1, 3), pick(0, 3), pick(1, 2), groups)
    channels = groups * draw(st.sampled_from([1, 2, 3, 7, 8, 9, 16]))
    outputs = groups * draw(st.integers(1, 10))
    seen = [d * (k - 1) + 1 for d, k in zip(geometry.dilation, geometry.kernel, strict=True)]
    sizes = [max(1, n - 2 * p) + draw(st.integers(0, 18)) for n, p in zip(seen, geometry.padding, strict=True)]
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    a = torch.randn((draw(st.integers(1, 5)), channels, *sizes), generator=generator)
    out = [
        (n + 2 * p - m) // s + 1
        for n, p, m, s in zip(sizes, geometry.padding, seen, geometry.stride, strict=True)
    ]  # fmt: skip
    g = torch.randn((len(a), outputs, *out), generator=generator)
    if rank == 2 and draw(st.booleans()):
        a = a.contiguous(memory_format=torch.channels_last)
    if rank == 2 and draw(st.booleans()):
        g = g.contiguous(memory_format=torch.channels_last)
    if draw(st.booleans()):  # a view on something larger
        a = torch.cat([a, a], 1)[:, :channels]
    return a, g, geometry


def plain(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """(B, p, C/groups, *kernel) in double precision, sample by sample, by the framework."""
    shape = (g.shape[1], a.shape[1] // geometry.groups, *geometry.kernel)
    return filters.compute_rows(a.double(), g.double(), shape, geometry, "native", Workspace())


def close(found: Tensor, wanted: Tensor, absolute: Tensor) -> None:
    """Up to roundings of the terms, whose sum without signs is given: they may cancel."""
    assert ((found.double() - wanted).abs() <= 2e-6 * absolute + 1e-30).all()


@settings(max_examples=80, deadline=None)
@given(case=layers(), level=st.integers(0, 2), threads=st.integers(1, 3))
def test_where_no_two_channels_meet_it_is_the_same(alone, case, level, threads):
    a, _, geometry = case
    geometry = replace(geometry, groups=a.shape[1])
    weight, rank = torch.zeros(a.shape[1], 1, *geometry.kernel), len(geometry.kernel)
    options = (geometry.stride, geometry.padding, geometry.dilation, geometry.groups)
    shape = (torch.conv1d, torch.conv2d)[rank - 1](a, weight, None, *options).shape
    g = torch.randn(shape, generator=torch.Generator().manual_seed(level))
    assert depthwise.can_run(a, g, geometry)
    assert not depthwise.can_run(a, torch.cat([g, g], 1), geometry)
    wanted, weights = plain(a, g, geometry), torch.linspace(0, 2, len(a))
    kernel, before = SampleGradients(alone, level), torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        rows = torch.full((len(a), a.shape[1], geometry.taps, 1), torch.nan)
        squared, total = kernel.measure_rows(a, g, geometry, rows), kernel.weighted_sum(a, g, geometry, weights)
        assert torch.equal(squared, kernel.measure_rows(a, g, geometry, None))
    finally:
        torch.set_num_threads(before)
    absolute = plain(a.abs(), g.abs(), geometry)
    close(rows.mT.reshape(wanted.shape), wanted, absolute)
    assert torch.allclose(squared.double(), rows.double().flatten(1).square().sum(1), 1e-5)
    summed, size = (torch.tensordot(weights.double(), x, 1) for x in (wanted, absolute))
    close(total.mT.reshape(summed.shape), summed, size)


@pytest.mark.parametrize("last", [False, True], ids=("default", "channels last"))
def test_depthwise_layers_agree_with_the_loop(last):
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(2, 9, 1), nn.Conv2d(9, 9, 7, padding=3, groups=9), nn.GELU(), nn.Conv2d(9, 9, 3, 2, groups=9)
    )
    same(model, (torch.randn(5, 2, 12, 11),), backend=Captured(PerformanceOptions(channels_last=last)))


def test_a_sample_of_weight_zero_is_not_looked_at_by_depthwise_sums(alone):
    a, g, geometry = torch.randn(3, 8, 5, 5), torch.randn(3, 8, 5, 5), Geometry((3, 3), (1, 1), (1, 1), (1, 1), 8)
    a[1] = torch.nan
    total = SampleGradients(alone).weighted_sum(a, g, geometry, torch.tensor([1.0, 0.0, 1.0]))
    wanted = plain(a[::2], g[::2], geometry).sum(0)
    assert torch.allclose(total.mT.reshape(wanted.shape).double(), wanted, 1e-5, 1e-4)


@settings(max_examples=150, deadline=None)
@given(case=layers(), level=st.integers(0, 1), threads=st.integers(1, 3))
def test_rows_norms_and_sums_are_the_frameworks(library, case, level, threads):
    a, g, geometry = case
    assert compiled.can_run(a, g, geometry)
    kernel, wanted, before = SampleGradients(library, level), plain(a, g, geometry), torch.get_num_threads()
    weights = torch.linspace(0, 2, len(a))
    torch.set_num_threads(threads)
    try:
        rows = torch.full((len(a), g.shape[1], geometry.taps, a.shape[1] // geometry.groups), torch.nan)
        squared, alone = kernel.measure_rows(a, g, geometry, rows), kernel.measure_rows(a, g, geometry, None)
        total = kernel.weighted_sum(a, g, geometry, weights)
    finally:
        torch.set_num_threads(before)
    absolute = plain(a.abs(), g.abs(), geometry)
    close(rows.mT.reshape(wanted.shape), wanted, absolute)
    assert torch.allclose(squared.double(), rows.double().flatten(1).square().sum(1), 1e-5)
    assert torch.equal(squared, alone)
    summed, size = (torch.tensordot(weights.double(), x, 1) for x in (wanted, absolute))
    close(total.mT.reshape(summed.shape), summed, size)


def test_long_sums_keep_their_precision(kernel):
    """More positions than a block, more squares than a run."""
    a, g = torch.randn(2, 24, 40, 40), torch.randn(2, 9, 40, 40)
    geometry = Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    wanted = plain(a, g, geometry)
    squared = kernel.measure_rows(a, g, geometry, None).double()
    assert torch.allclose(squared, wanted.flatten(1).square().sum(1), rtol=1e-6)


def test_a_sample_of_weight_zero_is_not_looked_at(kernel):
    a, g, geometry = torch.randn(3, 8, 5, 5), torch.randn(3, 4, 5, 5), Geometry((3, 3), (1, 1), (1, 1), (1, 1), 1)
    a[1] = torch.nan
    total = kernel.weighted_sum(a, g, geometry, torch.tensor([1.0, 0.0, 1.0]))
    wanted = plain(a[::2], g[::2], geometry).sum(0)
    assert torch.allclose(total.mT.reshape(wanted.shape).double(), wanted, 1e-5, 1e-4)
    assert kernel.measure_rows(a, g, geometry, None)[1].isnan()


def test_a_wrong_kernel_is_not_trusted(kernel):
    class Wrong(SampleGradients):
        def measure_rows(self, a, g, geometry, into):
            return super().measure_rows(a, g, geometry, into) * 1.001

    assert compiled.agrees_with_torch(kernel)
    assert not compiled.agrees_with_torch(Wrong(kernel.library, kernel.level))


@pytest.mark.parametrize("keep", [0, 1 << 30], ids=("dropped", "kept"))
@pytest.mark.parametrize("last", [False, True], ids=("default", "channels last"))
def test_a_network_by_the_kernel_agrees_with_the_loop(keep, last, library, monkeypatch):
    used = SampleGradients(library, library.sordino_level(1))
    monkeypatch.setattr(compiled, "load_gradients", lambda: used)
    monkeypatch.setattr(convolution.Convolution, "_choose_formula", lambda *_: "compiled")
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, 2, 2), nn.ReLU(), nn.Conv2d(8, 12, 3, groups=2), nn.GroupNorm(2, 12),
        nn.Conv2d(12, 5, 2, dilation=2, padding=1), nn.ConvTranspose2d(5, 4, 3, 2, output_padding=1),
    )  # fmt: skip
    options = PerformanceOptions(keep_bytes=keep, channels_last=last)
    same(model, (torch.randn(6, 1, 14, 13),), backend=Captured(options))


def test_without_the_kernel_a_checkpoint_that_names_it_still_runs(monkeypatch):
    monkeypatch.setattr(compiled, "load_gradients", lambda: None)
    monkeypatch.setattr(Stopwatch, "known_choice", lambda _, key: "compiled" if key[0] in ("conv", "sum") else None)
    same(nn.Conv2d(2, 3, 3), (torch.randn(4, 2, 6, 6),))


def _without_signs(wide: Tensor, weight: Tensor, geometry: Geometry) -> Tensor:
    return torch.conv2d(wide, weight.double().abs(), None, geometry.stride, geometry.padding)


@settings(max_examples=150, deadline=None)
@given(case=layers(), level=st.integers(0, 1), threads=st.integers(1, 3), bias=st.booleans())
def test_output_and_input_gradient_are_the_frameworks(passes, case, level, threads, bias):
    a, g, geometry = case
    assume(len(geometry.kernel) == 2 and geometry.groups == 1)
    geometry = Geometry(geometry.kernel, geometry.stride, geometry.padding, (1, 1), 1)
    weight = torch.randn(g.shape[1], a.shape[1], *geometry.kernel, generator=torch.Generator().manual_seed(0))
    weight = weight.contiguous(memory_format=torch.channels_last) if bias else weight
    start, kernel, before = (
        torch.randn(len(weight)) if bias else None,
        Correlations(passes, level),
        torch.get_num_threads(),
    )
    wide = a.double().requires_grad_()
    y = torch.conv2d(
        wide, weight.double(), None if start is None else start.double(), geometry.stride, geometry.padding
    )
    g = torch.randn_like(y)
    (back,) = torch.autograd.grad(y, wide, g)
    y = y.detach()
    torch.set_num_threads(threads)
    try:
        found, found_back = (
            kernel.forward(a, weight, start, geometry),
            kernel.backward(a.shape, g.float(), weight, geometry),
        )
    finally:
        torch.set_num_threads(before)
    shift = None if start is None else start.double().abs()
    size = torch.conv2d(a.double().abs(), weight.double().abs(), shift, geometry.stride, geometry.padding)
    close(found, y, size)
    (back_size,) = torch.autograd.grad(_without_signs(wide, weight, geometry), wide, g.abs())
    close(found_back, back, back_size)


def test_a_wrong_pass_is_not_trusted(passes):
    class Wrong(Correlations):
        def backward(self, size, g, weight, geometry):
            return super().backward(size, g, weight, geometry) * 1.001

    assert correlation.agrees_with_torch(Correlations(passes))
    assert not correlation.agrees_with_torch(Wrong(passes))


@pytest.mark.parametrize("choice", ["torch", "compiled"])
def test_a_network_whose_passes_are_compiled_agrees_with_the_loop(choice, passes, monkeypatch):
    monkeypatch.setattr(correlated, "load_correlations", lambda: Correlations(passes))
    before, seen = Stopwatch.known_choice, set()

    def known(self, key):
        if key[0] in ("forward", "input"):
            seen.add(key[0])
            return choice
        return before(self, key)

    monkeypatch.setattr(Stopwatch, "known_choice", known)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(1, 8, 5, 2, 2),
        nn.ReLU(inplace=True),
        nn.Conv2d(8, 12, 4, 2),
        nn.GroupNorm(2, 12),
        nn.Conv2d(12, 5, 2),
    )
    same(model, (torch.randn(6, 1, 18, 17),), backend=Captured(PerformanceOptions(channels_last=True)))
    assert seen == {"forward", "input"}
