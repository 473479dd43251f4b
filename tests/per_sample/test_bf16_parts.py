"""The weight of a linear map in bfloat16, as a part: values too small for the instruction, terms, uses, bytes."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from sordino.kernels.bf16_product import load_low_products
from sordino.per_sample import Captured, PerformanceOptions
from sordino.per_sample.formulas import output_gradient as output
from sordino.per_sample.formulas.compound_parts import join_parts
from sordino.per_sample.formulas.gradient_part import measure_part
from sordino.per_sample.formulas.matrix_product import Matmul

T, D = 40, 64
KEPT = PerformanceOptions(keep_bytes=1 << 26)
AGAIN = PerformanceOptions(keep_bytes=0)

pytestmark = pytest.mark.skipif(load_low_products() is None, reason="this processor does not multiply bfloat16")


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def parts(a: Tensor, g: Tensor) -> tuple[Matmul, Matmul]:
    """The same, as the kernel reads it and from float32 copies."""
    low = Matmul(*output.prepare_factors(a, g))
    assert low.a.dtype == torch.bfloat16
    return low, Matmul(a.float(), g.float())


def summed(part: Matmul) -> float:
    total = torch.empty(part.g.shape[-1] if part.kept is None else part.kept.shape[1], D)
    part.add_to(total, torch.ones(1), 0)
    return float(total.double().square().sum())


@pytest.mark.parametrize("options", [KEPT, AGAIN], ids=("kept", "made twice"))
@pytest.mark.parametrize("formula", ["rows", "compiled"])
@pytest.mark.parametrize(
    ("small", "large"), [(1e-39, 1e38), (1.1e-38, 1.5e18), (1e-39, 1e18), (3e-39, 1.0), (1e-20, 1e-20), (1e-30, 1e30)]
)
def test_values_too_small_for_the_instruction_never_make_a_norm_low(monkeypatch, small, large, formula, options):
    """It takes them for zero, and float32 does not: the norm is no less than the sum of either."""
    monkeypatch.setattr(output.OutputGradient, "choose_formula", lambda *_: formula)
    a, g = (torch.full((1, T, D), value).bfloat16() for value in (small, large))
    a[:, :, ::7] *= -0.5
    low, copies = parts(a, g)
    truth = summed(copies)
    assert truth > 0
    squared = measure_part(low, options)
    if bool(squared.isfinite()):
        most = float(squared) * (1 + 1e-6) + torch.finfo(torch.float32).tiny
        assert summed(low) <= most
        if low.kept is None:  # else its own sum is made of what was measured
            assert truth <= most


@pytest.mark.parametrize("formula", ["rows", "compiled"])
def test_what_terms_come_to_is_in_float32(monkeypatch, formula):
    monkeypatch.setattr(output.OutputGradient, "choose_formula", lambda *_: formula)
    a, g = torch.randn(3, T, D).bfloat16(), torch.randn(3, T, D).bfloat16()
    low, _ = parts(a, g)
    low.measure_squared_norms(AGAIN)
    found = low.bound_squared_terms(AGAIN)
    assert found is not None
    assert found.dtype == torch.float32
    wanted = (a.double().norm(dim=2) * g.double().norm(dim=2)).sum(1).square()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=0.0)


def test_uses_of_unlike_precision_are_joined_in_the_higher():
    a, g = torch.randn(2, T, D).bfloat16(), torch.randn(2, T, D).bfloat16()
    few = torch.randn(2, 3, D).bfloat16(), torch.randn(2, 3, D).bfloat16()
    both = join_parts([Matmul(*output.prepare_factors(a, g)), Matmul(*output.prepare_factors(*few))])
    rows = g.double().mT @ a.double() + few[1].double().mT @ few[0].double()
    torch.testing.assert_close(both.rows(slice(None)).double(), rows, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(measure_part(both, KEPT).double(), rows.square().sum((1, 2)), rtol=3e-5, atol=0.0)
    same = join_parts([Matmul(*output.prepare_factors(a, g))] * 2)
    assert same.a.dtype == torch.bfloat16
    torch.testing.assert_close(
        measure_part(same, AGAIN).double(), 4 * (g.double().mT @ a.double()).square().sum((1, 2)), rtol=3e-5, atol=0.0
    )


def loss(model: nn.Module, x: Tensor) -> Tensor:
    return model(x).float().sin().flatten(1).sum(1)


def test_factors_that_stay_as_they_are_count_as_such(monkeypatch):
    model, x = nn.Linear(D, D, bias=False).bfloat16(), torch.randn(3, T, D).bfloat16()
    model.weight.data = model.weight.data.repeat(8, 1)  # rows are larger than input and gradient
    held = Captured().held_bytes(model, loss, (x,))
    assert held == 2 * T * (D + 8 * D)
    monkeypatch.setattr(output, "load_low_products", lambda: None)
    assert Captured().held_bytes(model, loss, (x,)) == 4 * T * (D + 8 * D)
