"""The compiled sums and weights of several matrices: torch's, at every level. The layers are in tests/per_sample."""

import pytest
import torch

from sordino.kernels import build
from sordino.kernels.matrices import FUNCTIONS, Functions, Matrices, agrees_with_torch
from tests.kernels.libraries import levels

kernel = levels(build.MATRICES, FUNCTIONS, Functions)


def test_it_agrees_with_torch(kernel):
    assert agrees_with_torch(kernel)


@pytest.mark.parametrize("width", [1, 7, 8, 33, 1024, 2100])
def test_squares_and_weighted_rows_are_those_of_float64(kernel, width):
    torch.manual_seed(width)
    x, w = torch.randn(5, width + 3)[:, :width], torch.rand(5)
    both = Matrices(kernel, [x])
    squared, _, finite = both.squared_row_products([0, -1])
    rows, total = torch.empty(5, width), torch.full((width,), torch.nan)
    both.write_weighted_rows(w, {0: rows}, {0: total}, anew=True)
    assert finite
    assert torch.allclose(squared[:, 0].double(), x.double().square().sum(1), rtol=3e-7)
    assert torch.equal(rows, w[:, None] * x)
    assert torch.allclose(total.double(), (w[:, None].double() * x.double()).sum(0), rtol=0, atol=5e-6)
