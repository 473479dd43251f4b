"""Tangent kernels: autograd's, and what each way of clipping makes of them on the two problems that tell them apart."""

import pytest
import torch
from torch import nn

import sordino as sd
from sordino.ntk import clipped_kernel, kernels, least_eigenvalue
from sordino.refusal import Refusal


class OneWeightEach(nn.Module):
    """A linear model in which every weight is a tensor of its own: a layer."""

    def __init__(self, numbers):
        super().__init__()
        self.layers = nn.ParameterList([nn.Parameter(torch.zeros(1, dtype=torch.float64)) for _ in range(numbers)])

    def forward(self, x):
        return sum(w * x[:, k : k + 1] for k, w in enumerate(self.layers))


def squared(model, x, y):
    return 0.5 * (model(x) - y).square().sum(1)


OPPOSED = (torch.tensor([[1.0, 1.0], [1.0, 2.0]]).double(), torch.tensor([[-5.0], [5.0]]).double())
COLLINEAR = (
    torch.tensor([[1.0, 0.0, 0.0], [1.0, 0.1, 0.0], [1.0, 0.0, 0.1]]).double(),
    torch.tensor([[10.0], [-1.0], [-1.0]]).double(),
)
R, Z = 0.1, 60.0


def clipping_rules(numbers):
    share = [R / numbers**0.5] * numbers
    return {
        "none": sd.Flat(float("inf")),
        "local flat": sd.Flat(R),
        "local layerwise": sd.Layerwise(share),
        "global flat": sd.Global(R, Z),
        "global layerwise": sd.GlobalLayerwise(share, [Z] * numbers),
    }


def test_kernels_are_products_of_gradients():
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 1)).double(), torch.randn(5, 3).double()
    found = kernels(model, x)
    rows = []
    for one in x:
        model.zero_grad()
        model(one).sum().backward()
        rows.append(torch.cat([p.grad.flatten() for p in model.parameters()]))
    j = torch.stack(rows)
    torch.testing.assert_close(sum(found.values()), j @ j.T)
    assert list(found) == ["0.weight", "0.bias", "2.weight", "2.bias"]


@pytest.mark.parametrize(("x", "y"), [OPPOSED, COLLINEAR], ids=["opposed", "collinear"])
def test_global_clipping_leaves_a_kernel_and_so_does_none(x, y):
    for name, clipping in clipping_rules(x.shape[1]).items():
        least = least_eigenvalue(clipped_kernel(OneWeightEach(x.shape[1]), squared, x, y, clipping))
        if "local" not in name:
            assert least >= -1e-9, name


def test_local_clipping_does_not():
    """Of the published table: flat clipping on records that nearly agree, layerwise clipping too."""
    x, y = COLLINEAR
    by = clipping_rules(3)
    for name in ("local flat", "local layerwise"):
        kernel = clipped_kernel(OneWeightEach(3), squared, x, y, by[name])
        assert least_eigenvalue(kernel) < -1e-4 * float(kernel.abs().max()), name


def test_layerwise_clipping_can_stand_still_where_nothing_is_learnt():
    """Both records pull every weight alike, in opposite directions: the loss stays at 25."""
    x, y = OPPOSED
    kernel = clipped_kernel(OneWeightEach(2), squared, x, y, clipping_rules(2)["local layerwise"])
    torch.testing.assert_close(kernel @ (0 - y), torch.zeros(2, 1).double(), rtol=0, atol=1e-12)


def test_a_model_of_several_outputs_is_refused():
    with pytest.raises(Refusal, match="says 2 numbers about a record"):
        kernels(nn.Linear(3, 2), torch.zeros(1, 3))
