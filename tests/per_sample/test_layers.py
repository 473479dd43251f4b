"""Captured = the loop, over a grid of layers whose ids name themselves, and random ones from hypothesis."""

from __future__ import annotations

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from sordino.per_sample import Captured
from sordino.per_sample.formulas import choice_by_shape
from sordino.per_sample.formulas.convolution_geometry import Geometry
from sordino.per_sample.formulas.gradient_part import measure_part
from sordino.per_sample.formulas.matrix_product import Matmul
from sordino.per_sample.performance_options import PerformanceOptions
from tests.per_sample.oracle import same
from tests.per_sample.zoo import GRID, Case

DTYPES = (torch.float32, torch.float64)
quick = settings(max_examples=12, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("dtype", DTYPES, ids=("float32", "float64"))
@pytest.mark.parametrize("case", GRID, ids=str)
def test_gradients_are_the_loops(case: Case, dtype: torch.dtype):
    torch.manual_seed(1)
    model = case.model().to(dtype)
    same(model, case.batch(5, dtype))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("case", GRID[::3], ids=str)
def test_two_passes_give_the_same(case: Case):
    torch.manual_seed(2)
    same(case.model().double(), case.batch(4, torch.float64), backend=Captured(PerformanceOptions(two_pass=True)))


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("case", GRID, ids=str)
def test_without_a_stopwatch_they_are_the_loops_too(case: Case):
    torch.manual_seed(3)
    same(case.model().double(), case.batch(4, torch.float64), backend=Captured(PerformanceOptions(measure=False)))


BY_SHAPE = {  # shapes on which each formula is taken: input, weight, stride, padding
    "last": ((16, 9, 9), (8, 16, 3, 3), 2, 1),
    "unfold": ((3, 12, 12), (8, 3, 3, 3), 1, 1),
    "shifted": ((32, 3, 3), (64, 32, 3, 3), 1, 1),
    "gram": ((64, 4, 4), (128, 64, 3, 3), 3, 0),
}


@pytest.mark.parametrize("last", [False, True], ids=("default format", "channels last"))
@pytest.mark.parametrize("formula", BY_SHAPE)
def test_the_formula_by_shape_depends_on_shapes_and_is_the_loops(monkeypatch, formula, last):
    shape, (p, c, *kernel), stride, padding = BY_SHAPE[formula]
    seen = []
    norms = choice_by_shape.choose_norms_formula

    def watched(*given, **named):
        seen.append(norms(*given, **named))
        return seen[-1]

    monkeypatch.setattr(choice_by_shape, "choose_norms_formula", watched)
    torch.manual_seed(4)
    model = nn.Conv2d(c, p, tuple(kernel), stride, padding).double()
    options = PerformanceOptions(measure=False, channels_last=last, keep_bytes=0)
    for scale in (1.0, 1e3):
        same(model, (scale * torch.randn(6, *shape, dtype=torch.float64),), backend=Captured(options))
    assert set(seen) == {formula}


def _spatial(draw, rank: int):
    kernel = draw(st.tuples(*[st.integers(1, 3)] * rank))
    dilation = draw(st.tuples(*[st.integers(1, 2)] * rank))
    padding = draw(st.tuples(*[st.integers(0, 2)] * rank))
    stride = draw(st.tuples(*[st.integers(1, 3)] * rank))
    size = tuple(d * (k - 1) + 1 + draw(st.integers(1, 4)) for k, d in zip(kernel, dilation, strict=True))
    return kernel, dilation, padding, stride, size


@st.composite
def convolutions(draw) -> tuple[nn.Module, Tensor]:
    rank = draw(st.integers(1, 3))
    kernel, dilation, padding, stride, size = _spatial(draw, rank)
    groups = draw(st.sampled_from((1, 2, 4)))
    p = groups * draw(st.integers(1, 3))
    bias = draw(st.booleans())
    make = (nn.Conv1d, nn.Conv2d, nn.Conv3d)[rank - 1]
    mode = draw(st.sampled_from(("zeros", "reflect", "replicate", "circular")))
    if mode != "zeros":
        padding = tuple(min(q, n - 1) for q, n in zip(padding, size, strict=True))
    how = draw(st.sampled_from(("numbers", "same", "valid")))
    if how == "same":
        stride = (1,) * rank
    if how == "same" and mode == "reflect":
        mode = "zeros"
    layer = make(
        4, p, kernel, stride, padding if how == "numbers" else how, dilation, groups, bias=bias, padding_mode=mode
    )
    return layer, torch.randn(draw(st.integers(1, 4)), 4, *size)


@quick
@given(convolutions(), st.booleans())
def test_any_convolution(case: tuple[nn.Module, Tensor], inner: bool):
    layer, x = case
    model = nn.Sequential(nn.PReLU(), layer) if inner else layer
    same(model.double(), (x.double(),))


@st.composite
def transposed(draw) -> tuple[nn.Module, Tensor]:
    rank = draw(st.integers(1, 3))
    kernel, dilation, padding, stride, size = _spatial(draw, rank)
    padding = tuple(min(q, d * (k - 1) // 2) for q, d, k in zip(padding, dilation, kernel, strict=True))
    extra = tuple(draw(st.integers(0, max(s, d) - 1)) for s, d in zip(stride, dilation, strict=True))
    groups = draw(st.sampled_from((1, 2)))
    make = (nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d)[rank - 1]
    layer = make(4, 2 * groups, kernel, stride, padding, extra, groups, draw(st.booleans()), dilation)
    return layer, torch.randn(3, 4, *size)


@quick
@given(transposed())
def test_any_transposed_convolution(case: tuple[nn.Module, Tensor]):
    layer, x = case
    same(layer.double(), (x.double(),))


@quick
@given(st.lists(st.integers(1, 3), max_size=3), st.integers(1, 6), st.integers(1, 6), st.booleans(), st.integers(1, 5))
def test_any_linear(middle: list[int], d: int, p: int, bias: bool, b: int):
    same(nn.Linear(d, p, bias).double(), (torch.randn(b, *middle, d).double(),))


@quick
@given(
    st.sampled_from((nn.LSTM, nn.GRU, nn.RNN)),
    st.integers(1, 2),
    st.booleans(),
    st.booleans(),
    st.booleans(),
    st.integers(1, 4),
)
def test_any_recurrent_layer(kind, layers: int, both: bool, bias: bool, first: bool, steps: int):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.r = kind(3, 4, layers, bias=bias, batch_first=first, bidirectional=both)

        def forward(self, x):
            return self.r(x)[0] if first else self.r(x.transpose(0, 1))[0].transpose(0, 1)

    same(Net().double(), (torch.randn(3, steps, 3).double(),))


@quick
@given(st.integers(0, 6), st.integers(1, 6), st.integers(1, 8), st.sampled_from((None, 0, 2)))
def test_any_embedding(seed: int, b: int, length: int, padding: int | None):
    ids = torch.randint(0, 5, (b, length), generator=torch.Generator().manual_seed(seed))
    same(nn.Sequential(nn.Embedding(5, 3, padding), nn.Linear(3, 2)).double(), (ids,))


CHOICES = ("last", "native", "unfold", "shift", "gram", "shifted")


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("keep", [0, 1 << 30], ids=("dropped", "kept"))
def test_every_formula_of_a_convolution_gives_the_same(choice: str, keep: int, monkeypatch: pytest.MonkeyPatch):
    from sordino.per_sample.formulas.convolution_weight import Convolution

    monkeypatch.setattr(Convolution, "_choose_formula", lambda *_: choice)
    model = nn.Sequential(nn.Conv2d(3, 4, (3, 2), padding=(1, 2), dilation=(2, 1)), nn.Conv2d(4, 5, 2))
    options = PerformanceOptions(keep_bytes=keep, scratch_bytes=4096)
    same(model.double(), (torch.randn(5, 3, 7, 6).double(),), backend=Captured(options))


@pytest.mark.parametrize("choice", ["gram", "rows"])
@pytest.mark.parametrize("keep", [0, 1 << 30], ids=("dropped", "kept"))
def test_every_formula_of_a_linear_map_gives_the_same(choice: str, keep: int, monkeypatch: pytest.MonkeyPatch):
    from sordino.per_sample.formulas.output_gradient import OutputGradient

    monkeypatch.setattr(OutputGradient, "choose_formula", lambda *_: choice)
    options = PerformanceOptions(keep_bytes=keep, scratch_bytes=1024)
    same(nn.Linear(6, 5).double(), (torch.randn(7, 4, 6).double(),), backend=Captured(options))


@pytest.mark.parametrize("choice", ["gram", "compiled", "rows"])
@pytest.mark.parametrize("keep", [0, 1 << 30], ids=("dropped", "kept"))
def test_no_formula_raises_norms_of_a_weight_used_on_unlike_inputs(
    choice: str, keep: int, monkeypatch: pytest.MonkeyPatch
):
    from sordino.kernels.gram import load_grams
    from sordino.per_sample.formulas.output_gradient import OutputGradient

    if choice == "compiled" and load_grams() is None:
        pytest.skip("no compiled kernels here")
    monkeypatch.setattr(OutputGradient, "choose_formula", lambda *_: choice)
    a, g = torch.randn(9, 3, 6), torch.randn(9, 3, 6)  # ‖a‖‖g‖ is from one large input and another's large gradient
    a[:, 0], g[:, 0] = 1e4 * a[:, 0], 1e-4 * g[:, 0]
    part = Matmul(a, g)
    exact = torch.bmm(g.double().transpose(1, 2), a.double()).flatten(1).square().sum(1)
    found = measure_part(part, PerformanceOptions(keep_bytes=keep))
    torch.testing.assert_close(found.double(), exact, rtol=2e-4, atol=0)


@pytest.mark.parametrize(("choice", "groups"), [("gram", 1), ("gram", 4), ("shifted", 1)])
def test_grams_of_a_convolution_raise_norms_by_what_their_rounding_hides(
    choice: str, groups: int, monkeypatch: pytest.MonkeyPatch
):
    from sordino.per_sample.formulas.convolution_weight import Convolution

    torch.manual_seed(0)
    monkeypatch.setattr(Convolution, "_choose_formula", lambda *_: choice)
    a, g = torch.randn(5, 4, 6, 6), torch.randn(5, 8, 6, 6)
    a[:, :, :2], g[:, :, :2] = 1e4 * a[:, :, :2], 1e-4 * g[:, :, :2]
    part = Convolution(a, g, Geometry((3, 3), (1, 1), (1, 1), (1, 1), groups))
    rows = part.rows(slice(None)).double()
    found = measure_part(part, PerformanceOptions(keep_bytes=0)).double() / rows.flatten(1).square().sum(1)
    patches = nn.functional.unfold(a.double(), 3, padding=1).unflatten(1, (groups, -1)).square().sum(2)
    terms = (patches * g.double().flatten(2).unflatten(1, (groups, -1)).square().sum(2)).sum(1).sqrt().sum(1)
    torch.testing.assert_close(part.terms.double(), terms.square(), rtol=1e-5, atol=0)
    assert 1 - 1e-6 <= found.min() <= found.max() <= 1 + 1e-3


@pytest.mark.parametrize("last", [False, True])
def test_memory_format_changes_nothing(last: bool):
    model = nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.Flatten(), nn.Linear(36, 2)
    )
    same(model.double(), (torch.randn(4, 1, 7, 7).double(),), backend=Captured(PerformanceOptions(channels_last=last)))
