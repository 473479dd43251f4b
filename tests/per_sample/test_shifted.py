"""L2 inside the clip: g_i + λθ as the loop has it, for every layer, without a gradient written out; and what it is for."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.clipping.clipping_rule import sum_clipped
from sordino.per_sample import Captured, Loop, Vmap
from sordino.per_sample.formulas.convolution_weight import Convolution
from sordino.per_sample.formulas.matrix_product import Matmul
from sordino.per_sample.materialised import Materialised
from sordino.per_sample.penalised import Shifted, prepare_backend
from sordino.per_sample.performance_options import PerformanceOptions
from sordino.per_sample.protocol import trainable_parameters
from tests.contracts.hunter import hunt
from tests.contracts.row import EXACT
from tests.contracts.variants import VARIANTS
from tests.per_sample.oracle import NORM, TENSOR, square
from tests.per_sample.zoo import GRID, Case

LAMBDA = 0.7


def oracle(model: nn.Module, batch, factors) -> Materialised:
    """The loop's gradients, each with λθ added by hand."""
    loop = Loop().per_sample(model, square, batch)
    rows = {n: g + factors.get(n, 0.0) * trainable_parameters(model)[n].detach() for n, g in loop.rows.items()}
    return Materialised(rows, loop.losses)


def agree(model, batch, backend, factors, dtype) -> None:
    true = oracle(model, batch, factors)
    ours = Shifted(prepare_backend(backend).per_sample(model, square, batch), trainable_parameters(model), factors)
    wanted, found = true.norms(), ours.norms()
    assert wanted.names == found.names
    scale = wanted.total().max() + 1e-6
    assert ((found.squared.sqrt() - wanted.squared.sqrt()).abs() / scale).max() <= 3 * NORM[dtype]
    weights = torch.rand(len(true.losses), len(wanted.names), dtype=dtype)
    one, two = ours.weighted_sum(weights), true.weighted_sum(weights)
    size = torch.sqrt(sum(t.square().sum() for t in two.values()))
    for name, t in two.items():
        assert (one[name] - t).norm() <= TENSOR[dtype] * size, name
    u = {name: torch.randn_like(p) for name, p in trainable_parameters(model).items()}
    torch.testing.assert_close(ours.dot(u), true.dot(u), rtol=1e-3, atol=TENSOR[dtype] * float(size) * 10)


@pytest.mark.filterwarnings("ignore:LSTM with projections")
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=("float32", "float64"))
@pytest.mark.parametrize("case", GRID, ids=str)
def test_the_captured_engine_gives_the_loops_shifted_gradients(case: Case, dtype):
    torch.manual_seed(3)
    model = case.model().to(dtype)
    agree(model, case.batch(4, dtype), Captured(), dict.fromkeys(trainable_parameters(model), LAMBDA), dtype)


@pytest.mark.parametrize("backend", [Loop(), Vmap(), Captured(PerformanceOptions(two_pass=True))], ids=str)
@pytest.mark.parametrize(
    "case", [case for case in GRID if case.name in ("conv-pair", "tied-by-module", "lora")], ids=str
)
def test_every_backend_gives_the_loops_shifted_gradients(case: Case, backend):
    torch.manual_seed(4)
    model = case.model().double()
    some = dict(list(dict.fromkeys(trainable_parameters(model), LAMBDA).items())[::2])  # λ for every other tensor
    agree(model, case.batch(4, torch.float64), backend, some, torch.float64)


LINEAR = {
    "linear": (lambda: nn.Linear(4, 3), (4,)),
    "linear-3d": (lambda: nn.Linear(8, 3), (5, 8)),
    "conv2d": (lambda: nn.Conv2d(4, 6, 3, groups=2), (4, 4, 4)),
    "transposed1d": (lambda: nn.ConvTranspose1d(4, 6, 3), (4, 2)),
}


@pytest.mark.parametrize(("make", "shape"), LINEAR.values(), ids=LINEAR)
@pytest.mark.parametrize("inplace", [False, True], ids=["", "relu-in-place"])
def test_layers_linear_in_their_parameters_take_no_product_with_them_unless_their_output_was_changed(
    make, shape, inplace, monkeypatch
):
    """The inner product comes from output times output gradient."""
    torch.manual_seed(5)
    model, batch = nn.Sequential(make(), nn.ReLU(inplace)).double(), (torch.randn(4, *shape).double(),)
    asked = []
    for kind in (Convolution, Matmul):
        monkeypatch.setattr(kind, "dot", lambda self, u, real=kind.dot: asked.append(self) or real(self, u))
    Captured(inner=True).per_sample(model, square, batch).inner  # noqa: B018
    assert bool(asked) == inplace


def test_a_layer_with_more_outputs_than_weights_multiplies_the_rows_it_keeps():
    torch.manual_seed(5)
    model, batch = nn.Conv2d(3, 4, 3, padding=1), (torch.randn(4, 3, 16, 16),)
    grads = Captured(inner=True).per_sample(model, square, batch)
    assert grads.inner is not None
    assert grads._parts[0].kept is not None


def test_a_penalty_by_groups_reaches_those_groups_only():
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
    penalty = sd.L2({"0.": 0.5, "2.weight": 0.1})
    assert penalty.strengths_for(list(trainable_parameters(model))) == {"0.weight": 0.5, "0.bias": 0.5, "2.weight": 0.1}
    for wrong in ({"1.": 0.5}, {"0.": 0.1, "0.weight": 0.2}):
        with pytest.raises(ValueError, match="begin"):
            sd.Private(model, square, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0)), penalty=sd.L2(wrong))


class Point(nn.Module):
    """One number θ, and the loss ½(θ − θ*)²."""

    def __init__(self) -> None:
        super().__init__()
        self.theta = nn.Linear(1, 1, bias=False)
        nn.init.zeros_(self.theta.weight)

    def forward(self, target):
        return 0.5 * (self.theta(torch.ones_like(target)) - target).square().sum(1)


def resting_point(penalty, weight_decay) -> float:
    torch.manual_seed(0)
    model = Point()
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(0.0))
    private = sd.Private(model, lambda m, t: m(t), query, penalty=penalty, seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=weight_decay)
    for lot in private.draws(TensorDataset(torch.full((4, 1), 3.8)), sd.Full(), steps=200):
        private.backward(lot)
        optimizer.step()
    return model.theta.weight.item()


def test_decoupled_decay_rests_at_the_bound_over_lambda_and_l2_in_the_clip_at_the_ridge_solution():
    """θ* = 3.8, R = 1, λ = ½: R/λ = 2.0000 against θ*/(1 + λ) = 2.5333."""
    assert resting_point(None, 0.5) == pytest.approx(2.0, abs=5e-5)
    assert resting_point(sd.L2(0.5), 0.0) == pytest.approx(2.5333, abs=5e-5)


CLIPPING_RULES = {
    row.name: row for row in VARIANTS if row.clipping and row.guarantee and not row.options and row.name != "jl"
}


@pytest.mark.parametrize("row", CLIPPING_RULES.values(), ids=CLIPPING_RULES)
def test_no_neighbour_moves_a_shifted_sum_by_more_than_any_weigher_declares(row):
    assert not hunt(row.query, Captured(), trials=10, options={"penalty": sd.L2(0.5)}).broken


@pytest.mark.parametrize("backend", EXACT.values(), ids=EXACT)
def test_no_neighbour_moves_the_sum_where_the_penalty_is_a_thousand_bounds_long(backend):
    """‖θ‖ is 2.6 for the hunter's network, so λ‖θ‖ = 1000·R at λ ≈ 190."""
    assert not hunt(
        lambda: sd.NoisySum(sd.Flat(0.5), sd.Gaussian(1.0)), backend, trials=20, options={"penalty": sd.L2(190.0)}
    ).broken


@pytest.mark.parametrize("backend", [Loop(), Vmap(), Captured()], ids=str)
@pytest.mark.parametrize("ratio", [10.0, 100.0, 1000.0])
@pytest.mark.parametrize("distance", [0.0, 0.5, 1.2, 3.0])
def test_a_gradient_that_cancels_the_penalty_is_not_read_short_in_float32(backend, ratio, distance):
    """g = −λθ + distance·R·e: what remains after the clip is at most R, measured in float64.

    Without the inflation term κu(‖g‖² + λ²‖θ‖²) the norm at ratio 1000 reads low by far more than the door's slack.
    """
    torch.manual_seed(6)
    model = nn.Linear(300, 40, bias=False)
    theta = model.weight.detach()
    factor = ratio / float(theta.norm())  # λ‖θ‖ = ratio · R, R = 1

    e = torch.randn(8, 40, 300)
    e = e / e.flatten(1).norm(dim=1)[:, None, None]
    wanted = -factor * theta + distance * e  # (8, 40, 300)
    grads = Shifted(
        prepare_backend(backend).per_sample(model, product, (wanted,)), trainable_parameters(model), {"weight": factor}
    )
    norms = grads.norms().total()
    alone = Loop().per_sample(model, product, (wanted,)).rows["weight"].double() + factor * theta.double()
    true = alone.flatten(1).norm(dim=1)
    kept = true * torch.clamp(1.0 / norms, max=1.0)
    assert kept.max() <= 1.0 + 1e-5


@pytest.mark.parametrize("others", [1, 100])
@pytest.mark.parametrize("ratio", [100.0, 1000.0])
def test_in_float32_too_one_record_moves_the_sum_by_no_more_than_the_bound(ratio, others):
    """Every gradient cancels the penalty, so the sum is a difference of numbers `ratio` times as large."""
    torch.manual_seed(7)
    model = nn.Linear(300, 40, bias=False)
    factor = ratio / float(model.weight.detach().norm())
    e = torch.randn(1 + others, 40, 300)
    wanted = 1.2 * e / e.flatten(1).norm(dim=1)[:, None, None] - factor * model.weight.detach()
    rule, sums = sd.Flat(1.0).rule(None, list), []
    for batch in (wanted, wanted[1:]):
        grads = prepare_backend(Captured()).per_sample(model, product, (batch,))
        total = sum_clipped((Shifted(grads, trainable_parameters(model), {"weight": factor}),), rule).total
        sums.append(total["weight"].double().clone())
    assert (sums[0] - sums[1]).norm() <= 1.0 + 1e-5


def product(model: nn.Linear, direction):
    """⟨W, D_i⟩, whose gradient is D_i, as a use of the layer: the diagonal of its output for inputs D_i."""
    return torch.diagonal(model(direction), dim1=1, dim2=2).sum(1)
