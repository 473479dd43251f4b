"""Layers with one position per sample, taken together: the same answers as one by one, and the loop's."""

import pytest
import torch
from torch import Tensor, nn

from sordino.kernels import matrices as rows
from sordino.per_sample import Captured, Loop
from sordino.per_sample.accelerations import small_layers
from sordino.per_sample.engine.batch_result import Result
from sordino.per_sample.layers import rule
from tests.per_sample.oracle import same, square

pytestmark = pytest.mark.skipif(rows.load_functions() is None, reason="the library was not compiled")


def _net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(37, 50), nn.Tanh(), nn.Linear(50, 3, bias=False), nn.Tanh(), nn.Linear(3, 40))


def _grads(model: nn.Module, x: Tensor) -> Result:
    grads = Captured().per_sample(model, square, (x,))
    assert isinstance(grads, Result)
    return grads


def _close(one: Tensor, other: Tensor) -> None:
    torch.testing.assert_close(one, other, rtol=2e-6, atol=1e-6 * float(other.abs().max()))


def test_norms_and_sums_are_those_of_the_ordinary_way(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x = _net(), torch.randn(21, 37)
    w = torch.rand(21, 1)
    fast = _grads(model, x)
    assert fast._joint_parts is not None
    norms, total = fast.norms(), fast.weighted_sum(w)
    twice = fast.weighted_sum(w, into={name: t.clone() for name, t in total.items()})
    monkeypatch.setattr(small_layers, "load_functions", lambda: None)
    plain = _grads(model, x)
    assert plain._joint_parts is None
    _close(norms.squared, plain.norms().squared)
    _close(norms.total(), plain.norms().total())
    assert norms.finite
    for name, wanted in plain.weighted_sum(w).items():
        _close(total[name], wanted)
        _close(twice[name], 2 * wanted)


def test_they_are_those_of_the_loop() -> None:
    same(_net(), (torch.randn(9, 37),))


def _mixed() -> nn.Module:
    """A convolution between small layers, with a norm layer."""
    torch.manual_seed(0)
    head = nn.Sequential(nn.Flatten(), nn.Linear(4 * 9, 6), nn.Tanh(), nn.Linear(6, 3))
    return nn.Sequential(nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.Tanh(), *head)


def test_small_layers_of_other_models_are_taken_together_too(monkeypatch: pytest.MonkeyPatch) -> None:
    model, x, w = _mixed(), torch.randn(5, 2, 5, 5), torch.rand(5, 1)
    fast = _grads(model, x)
    together = fast._joint_parts
    assert together is not None
    assert not together.everything
    assert together.columns == [1, 2, 3, 4, 5, 6, 7]  # all but the convolution's weight
    total = fast.weighted_sum(w)
    in_turn = dict(fast.sums(w))
    assert list(in_turn) == list(total)  # in the order of the parameters, which ranks have in common
    monkeypatch.setattr(small_layers, "load_functions", lambda: None)
    plain = _grads(model, x)
    _close(fast.norms().squared, plain.norms().squared)
    for name, wanted in plain.weighted_sum(w).items():
        _close(total[name], wanted)
        assert torch.equal(in_turn[name], total[name])
    same(_mixed(), (x,))


def test_weights_by_parameter_and_rows_that_are_not_contiguous() -> None:
    model, x = _net(), torch.randn(37, 8).t()
    w = torch.rand(8, 5)
    fast, loop = _grads(model, x), Loop().per_sample(model, square, (x,))
    _close(fast.norms().squared, loop.norms().squared)
    for name, wanted in loop.weighted_sum(w).items():
        _close(fast.weighted_sum(w)[name], wanted)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, 1e30])
def test_a_row_that_is_not_finite_is_noticed_and_counts_nothing_at_weight_0(bad: float) -> None:
    model, x = nn.Sequential(nn.Linear(3, 2), nn.Linear(2, 2)), torch.randn(4, 3)
    x[1] = bad
    grads = _grads(model, x)
    assert not grads.norms().finite
    w = torch.tensor([[0.5], [0.0], [2.0], [1.0]])
    others = [0, 2, 3]
    wanted = _grads(model, x[others]).weighted_sum(w[others])
    for name, total in grads.weighted_sum(w).items():
        _close(total, wanted[name])


class _Both(nn.Module):
    """x + p + q: one gradient for two parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.p, self.q = nn.Parameter(torch.zeros(3)), nn.Parameter(torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        return x + self.p + self.q


def test_one_gradient_for_two_parameters_goes_the_ordinary_way() -> None:
    @rule(_Both)
    def both(tape, module, x):  # type: ignore[no-untyped-def]
        tape.batch_dim(x, only=0)
        y = x + tape.leaf(module.p, x) + module.q.detach()
        return tape.record(y, (), lambda saved, g: {module.p: g, module.q: g})

    same(_Both(), (torch.randn(5, 3),))


@pytest.mark.parametrize("width", [1, 7, 8, 31, 32, 33, 1023, 1024, 1025, 300_000])
def test_sums_of_squares_do_not_read_low_over_long_rows(width: int) -> None:
    compiled = rows.load_functions()
    assert compiled is not None
    torch.manual_seed(width)
    x = torch.rand(3, width + 5)[:, :width]  # rows further apart than they are long
    squared, sums, _ = rows.Matrices(compiled, [x]).squared_row_products([0, -1])
    wanted = x.double().square().sum(1)
    assert ((squared[:, 0].double() - wanted) / wanted).abs().max() < 3e-7
    assert torch.equal(sums, squared[:, 0])


def test_finite_numbers_are_told_from_others() -> None:
    compiled = rows.load_functions()
    assert compiled is not None
    fine = [torch.randn(3, 5), torch.full((17,), torch.finfo(torch.float32).max), torch.zeros(1)]
    assert compiled.are_finite(fine)
    for value in (torch.inf, -torch.inf, torch.nan):
        for place in (0, 8, 16):
            bad = torch.randn(17)
            bad[place] = value
            assert not compiled.are_finite([*fine, bad])


@pytest.mark.parametrize("bound", [1e-30, 0.7, 1.0, 1e30, torch.inf])
def test_weights_of_the_clip_are_those_of_torch_to_the_last_bit(bound: float) -> None:
    compiled = rows.load_functions()
    assert compiled is not None
    torch.manual_seed(0)
    squared = torch.cat(
        [10 ** (40 * torch.rand(1001) - 20), torch.tensor([0.0, 1e-45, 1.0, bound**2, torch.inf, torch.nan])]
    )
    wanted = torch.fmin(squared.rsqrt().mul_(bound), torch.ones(()))
    assert torch.equal(compiled.clipping_factors(squared, bound), wanted)


def test_functions_that_are_wrong_are_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = rows.load_functions()
    assert compiled is not None
    assert rows.agrees_with_torch(compiled)
    true = compiled.library.sordino_squared
    monkeypatch.setattr(compiled.library, "sordino_squared", lambda level, count, *rest: true(level, count - 1, *rest))
    assert not rows.agrees_with_torch(compiled)
