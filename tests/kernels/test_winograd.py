"""3×3 convolutions with fewer multiplications: the framework's results in double precision, up to rounding."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import conv2d, conv_transpose2d
from torch.nn.grad import conv2d_input, conv2d_weight

from sordino.kernels import build, winograd, winograd_rows
from sordino.kernels import convolution as compiled
from sordino.kernels.sample_gradients import FUNCTIONS, SampleGradients
from sordino.kernels.winograd import Passes
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.formulas import choice_by_shape, convolution_pass
from sordino.per_sample.formulas import convolution_pass as correlated
from sordino.per_sample.formulas.convolution_geometry import Geometry
from sordino.per_sample.formulas.formula_timing import Stopwatch
from tests.kernels.libraries import library as of_these_sources
from tests.per_sample.oracle import same

ROUNDING = 4 * 2.0**-23
"""Of the largest sum of absolute products. Over 29,870 random layers of these sizes the worst was 2.9 last places."""
LAST = torch.channels_last


class Gradients(SampleGradients):
    """Those of this kernel, to be told from the direct one's."""


@pytest.fixture(scope="module")
def passes_library():
    return of_these_sources(build.WINOGRAD, winograd.FUNCTIONS)


@pytest.fixture(scope="module")
def rows_library():
    return of_these_sources(build.WINOGRAD_ROWS, FUNCTIONS)


@contextmanager
def threads(n: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(n)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def plain(above: int, left: int) -> Geometry:
    return Geometry((3, 3), (1, 1), (above, left), (1, 1), 1)


def last(x: Tensor) -> Tensor:
    return x.clone(memory_format=LAST)


@st.composite
def layers(draw):
    """An input, an output gradient, a weight and the padding between them."""
    geometry = plain(draw(st.integers(0, 2)), draw(st.integers(0, 2)))
    sizes = [max(1, 3 - 2 * p) + draw(st.integers(0, 9)) for p in geometry.padding]
    batch, channels, outputs = draw(st.integers(1, 5)), draw(st.integers(1, 40)), draw(st.integers(1, 40))
    rng = torch.Generator().manual_seed(draw(st.integers(0, 99)))
    a = last(torch.randn(batch, channels, *sizes, generator=rng))
    out = [n + 2 * p - 2 for n, p in zip(sizes, geometry.padding, strict=True)]
    g, w = last(torch.randn(batch, outputs, *out, generator=rng)), torch.randn(outputs, channels, 3, 3, generator=rng)
    return a, g, last(w) if draw(st.booleans()) else w, geometry


def each(a: Tensor, g: Tensor, geometry: Geometry) -> Tensor:
    """(B, p, C, 3, 3) by the framework, sample by sample."""
    size = (g.shape[1], a.shape[1], 3, 3)
    pairs = zip(a.split(1), g.split(1), strict=True)
    return torch.stack([conv2d_weight(x, size, y, padding=geometry.padding) for x, y in pairs])


def close(found: Tensor, wanted: Tensor, absolute: Tensor) -> None:
    assert found.shape == wanted.shape
    assert (found.double() - wanted).abs().max() <= ROUNDING * absolute.max()


@settings(max_examples=150, deadline=None)
@given(case=layers(), level=st.integers(0, 2), count=st.integers(1, 2), bias=st.booleans())
def test_output_and_input_gradient_are_the_frameworks(passes_library, case, level, count, bias):
    a, g, w, geometry = case
    start = torch.linspace(-1, 1, len(w)) if bias else None
    kernel, padding = Passes(passes_library, level), geometry.padding
    with threads(count):
        y, back = kernel.forward(a, w, start, geometry), kernel.backward(a.shape, g, w, geometry)
    a, g, w = a.double(), g.double(), w.double()
    start = None if start is None else start.double()
    size = None if start is None else start.abs()
    # A tile is computed whole: products of taps with pixels beyond the border cancel in it, and leave their rounding.
    close(y, conv2d(a, w, start, padding=padding), conv2d(a.abs(), w.abs(), size, padding=2))
    close(back, conv2d_input(a.shape, w, g, padding=padding), conv_transpose2d(g.abs(), w.abs()))


@settings(max_examples=150, deadline=None)
@given(case=layers(), level=st.integers(0, 2), count=st.integers(1, 2))
def test_rows_norms_and_sums_are_the_frameworks(rows_library, case, level, count):
    a, g, _, geometry = case
    assert winograd_rows.can_run(a, g, geometry)
    kernel, weights = Gradients(rows_library, level), torch.linspace(0, 2, len(a))
    wanted, absolute = each(a.double(), g.double(), geometry), each(a.double().abs(), g.double().abs(), geometry)
    with threads(count):
        rows = torch.full((len(a), g.shape[1], 9, a.shape[1]), torch.nan)
        squared, alone = kernel.measure_rows(a, g, geometry, rows), kernel.measure_rows(a, g, geometry, None)
        a[0] = torch.nan  # of weight 0
        total = kernel.weighted_sum(a, g, geometry, weights)
    close(rows.mT.reshape(wanted.shape), wanted, absolute)
    norms = wanted.flatten(1).square().sum(1)
    bound = 1e-6 * norms + (ROUNDING * absolute.flatten(1).amax(1)).square()  # of a few products that cancel
    assert ((squared.double() - norms).abs() <= bound).all()
    assert torch.equal(squared, alone)
    summed, size = (torch.tensordot(weights.double(), x, 1) for x in (wanted, absolute))
    close(total.mT.reshape(summed.shape), summed, size.clamp(min=1e-30))


@pytest.mark.parametrize("level", [0, 1], ids=["portable", "AVX2"])
@pytest.mark.parametrize(
    ("channels", "outputs", "size"), [(64, 64, 33), (16, 48, 32), (300, 24, 9), (24, 270, 8)]
)  # several blocks of tiles, more channels than are added up at once
def test_larger_layers_round_like_the_direct_sum(passes_library, rows_library, channels, outputs, size, level):
    torch.manual_seed(0)
    geometry, weights = plain(1, 1), torch.rand(3)
    a, w = last(torch.randn(3, channels, size, size)), torch.randn(outputs, channels, 3, 3)
    g = last(torch.randn(3, outputs, size, size))
    passes, gradients = Passes(passes_library, level), Gradients(rows_library, level)
    rows = torch.empty(3, outputs, 9, channels)
    squared = gradients.measure_rows(a, g, geometry, rows)
    wide = each(a.double(), g.double(), geometry)

    def error(found: Tensor, wanted: Tensor) -> float:
        return float((found.double() - wanted).norm() / wanted.norm())

    y, back = conv2d(a.double(), w.double(), padding=1), conv2d_input(a.shape, w.double(), g.double(), padding=1)
    total = torch.tensordot(weights.double(), wide, 1)
    found_total = gradients.weighted_sum(a, g, geometry, weights)
    for found, wanted in (
        (passes.forward(a, w, None, geometry), y),
        (passes.backward(a.shape, g, w, geometry), back),
        (rows.mT.reshape(wide.shape), wide),
        (found_total.mT.reshape(total.shape), total),
    ):
        assert error(found, wanted) < 2e-6
    assert torch.allclose(squared.double(), wide.flatten(1).square().sum(1), rtol=1e-6)


def test_results_do_not_depend_on_the_other_samples(passes_library, rows_library):
    """Nor on the block a sample's tiles fall into, nor on the threads; a sample that is not finite stays alone."""
    torch.manual_seed(0)
    a, g, w, geometry = (
        last(torch.randn(7, 24, 5, 7)), last(torch.randn(7, 20, 5, 7)), torch.randn(20, 24, 3, 3), plain(1, 1),
    )  # fmt: skip
    passes, gradients = Passes(passes_library), Gradients(rows_library)

    def everything(a: Tensor, g: Tensor) -> list[Tensor]:
        rows = torch.empty(len(a), 20, 9, 24)
        squared = gradients.measure_rows(a, g, geometry, rows)
        return [passes.forward(a, w, None, geometry), passes.backward(a.shape, g, w, geometry), rows, squared]

    alone = [everything(a[i : i + 1], g[i : i + 1]) for i in range(7)]
    a[3], g[3] = torch.nan, torch.inf
    for count in (1, 2, 3):
        with threads(count):
            found = everything(a, g)
        for k, all_of_it in enumerate(found):
            assert all(torch.equal(all_of_it[i], alone[i][k][0]) for i in range(7) if i != 3)
        assert not found[3][3].isfinite()


def test_wrong_kernels_are_not_trusted(passes_library, rows_library):
    class WrongPasses(Passes):
        def backward(self, size, g, weight, geometry):
            return super().backward(size, g, weight, geometry) * 1.001

    class WrongGradients(Gradients):
        def weighted_sum(self, a, g, geometry, weights):
            return super().weighted_sum(a, g, geometry, weights) * 1.001

    assert winograd.agrees_with_torch(Passes(passes_library))
    assert winograd_rows.agrees_with_torch(Gradients(rows_library))
    assert not winograd.agrees_with_torch(WrongPasses(passes_library))
    assert not winograd_rows.agrees_with_torch(WrongGradients(rows_library))


@pytest.mark.parametrize(
    "geometry",
    [
        Geometry((3, 3), (2, 1), (1, 1), (1, 1), 1),
        Geometry((3, 3), (1, 1), (1, 1), (1, 2), 1),
        Geometry((3, 3), (1, 1), (1, 1), (1, 1), 2),
        Geometry((3, 3), (1, 1), (3, 1), (1, 1), 1),
        Geometry((3, 1), (1, 1), (1, 0), (1, 1), 1),
        Geometry((3,), (1,), (1,), (1,), 1),
    ],
)
def test_other_convolutions_are_left_to_others(geometry):
    assert not winograd.is_winograd_convolution(geometry)


def _noted(function: Callable[..., Any], note: Callable[[Any], None]) -> Callable[..., Any]:
    def noted(*given: Any, **options: Any) -> Any:
        found = function(*given, **options)
        note(found)
        return found

    return noted


def _network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, 1, 1),
        nn.ReLU(inplace=True),
        nn.Conv2d(16, 24, 3, padding=(0, 2)),
        nn.GroupNorm(4, 24),
        nn.Conv2d(24, 17, 3, 1, 1, bias=False),
        nn.ConvTranspose2d(17, 16, 3, padding=1),
    )


@pytest.mark.parametrize("keep", [0, 1 << 30], ids=("dropped", "kept"))
def test_a_network_agrees_with_the_loop(keep, passes_library, rows_library, monkeypatch):
    monkeypatch.setattr(winograd, "load_passes", lambda: Passes(passes_library))
    monkeypatch.setattr(winograd_rows, "load_gradients", lambda: Gradients(rows_library))
    before, seen = Stopwatch.known_choice, set()

    def known(self, key):
        seen.add(key[0])
        return "winograd" if key[0] in ("conv", "sum", "forward", "input") else before(self, key)

    monkeypatch.setattr(Stopwatch, "known_choice", known)
    used: list[str] = []
    for kind, name in (
        (Passes, "forward"),
        (Passes, "backward"),
        (Gradients, "measure_rows"),
        (Gradients, "weighted_sum"),
    ):
        monkeypatch.setattr(kind, name, _noted(getattr(kind, name), lambda _, name=name: used.append(name)))
    same(
        _network(),
        (torch.randn(6, 3, 9, 8),),
        backend=Captured(PerformanceOptions(keep_bytes=keep, channels_last=True)),
    )
    assert seen >= {"conv", "forward", "input"}
    assert set(used) == {"forward", "backward", "measure_rows"} | (set() if keep else {"weighted_sum"})


@pytest.mark.parametrize("wide", [False, True], ids=("eight at once", "sixteen at once"))
def test_without_a_stopwatch_it_is_used_where_there_are_channels_enough(
    wide, passes_library, rows_library, monkeypatch
):
    # Where torch computes sixteen floats in one piece, its own passes are faster; the norms and sums are still ours.
    monkeypatch.setattr(convolution_pass, "torch_computes_sixteen_at_once", lambda capability: wide)
    monkeypatch.setattr(winograd, "load_passes", lambda: Passes(passes_library))
    monkeypatch.setattr(winograd_rows, "load_gradients", lambda: Gradients(rows_library))
    taken: list[tuple[str, str]] = []
    for name in ("choose_norms_formula", "choose_sum_code", "choose_pass_code"):
        monkeypatch.setattr(
            choice_by_shape, name, _noted(getattr(choice_by_shape, name), lambda x, name=name: taken.append((name, x)))
        )
    options = PerformanceOptions(measure=False, keep_bytes=0)
    same(_network(), (torch.randn(6, 3, 9, 8),), backend=Captured(options))
    assert {name for name, choice in taken if choice == "winograd"} == {
        "choose_norms_formula",
        "choose_sum_code",
        *([] if wide else ["choose_pass_code"]),
    }
    assert {choice for name, choice in taken} >= {"torch", "compiled"}  # the first layer has three channels


def test_a_checkpoint_that_names_it_runs_without_it(monkeypatch):
    monkeypatch.setattr(winograd, "load_passes", lambda: None)
    monkeypatch.setattr(winograd_rows, "load_gradients", lambda: None)
    monkeypatch.setattr(
        Stopwatch, "known_choice", lambda _, key: "winograd" if key[0] in ("conv", "sum", "forward", "input") else None
    )
    same(_network(), (torch.randn(4, 3, 9, 8),), backend=Captured(PerformanceOptions(channels_last=True)))
    monkeypatch.setattr(compiled, "load_gradients", lambda: None)
    monkeypatch.setattr(correlated, "load_correlations", lambda: None)
    same(_network(), (torch.randn(4, 3, 9, 8),), backend=Captured(PerformanceOptions(channels_last=True)))
