"""Gradients that are little but rounding do not make a model refused; samples that are mixed still do."""

import pytest
import torch
from torch import nn

from sordino.per_sample import Captured
from sordino.refusal import Refusal


def loss(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def sure(rows=450, width=2000, margin=17.0):
    """A classifier and records that it is sure of: p − 1 is a rounding or two, where float32 has no digits left."""
    torch.manual_seed(0)
    model = nn.Linear(width, 10, bias=False)
    base = torch.randn(rows, width)
    with torch.no_grad():
        model.weight.copy_(torch.randn(10, width) * 9 / width**0.5)
        out = model(base)
        y, best = out.argmax(1), out.topk(2, dim=1)
        apart = model.weight[y] - model.weight[best.indices[:, 1]]
        more = margin + torch.rand(rows) * 0.6 - 0.3 - (best.values[:, 0] - best.values[:, 1])
        x = base + more.unsqueeze(1) * apart / apart.square().sum(1, keepdim=True)
    return model, x, y


def test_a_model_is_not_refused_for_rounding():
    model, x, y = sure()
    for i in range(100, 150):  # three at a time, as the first batch of a resumed run may begin; number 149 was refused
        some = slice(3 * i, 3 * i + 3)
        assert Captured().per_sample(model, loss, (x[some], y[some])).norms().squared.shape == (3, 1)


def test_a_model_that_mixes_samples_is_refused_also_in_double():
    class Mixes(nn.Linear):
        def forward(self, x):
            return super().forward(x - x.mean(0))

    torch.manual_seed(0)
    with pytest.raises(Refusal):
        Captured().per_sample(Mixes(5, 3), loss, (torch.randn(6, 5), torch.zeros(6, dtype=torch.long)))
