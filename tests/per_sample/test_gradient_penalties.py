"""Gradients inside the loss: refused by name where the fast engine cannot see them, exact where it can, and by the loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import sordino as sd
from sordino.per_sample import Captured, Loop
from sordino.refusal import Refusal
from tests.per_sample.models import mlp
from tests.per_sample.oracle import same, square

X = torch.randn(5, 4)


def penalised(model: nn.Module, x: Tensor) -> Tensor:
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).logsumexp(1).sum(), x, create_graph=True)
    return square(model, x) + (slope.norm(dim=1) - 1).square()


def hinged(model: nn.Module, x: Tensor) -> Tensor:
    """Of no consequence on the first batch."""
    x = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(model(x).sum(), x, create_graph=True)
    return square(model, x) + (slope.norm(dim=1) - 1e6).clamp(min=0)


def at_the_outputs(model: nn.Module, x: Tensor) -> Tensor:
    """Through no layer."""
    out = model(x)
    (slope,) = torch.autograd.grad(out.square().logsumexp(1).sum(), out, create_graph=True)
    return slope.square().sum(1)


def adversarial(model: nn.Module, x: Tensor) -> Tensor:
    moved = x.clone().requires_grad_()
    (slope,) = torch.autograd.grad(square(model, moved).sum(), moved)
    return square(model, x + 0.1 * slope.sign())


@pytest.mark.parametrize("loss", [penalised, hinged])
def test_a_penalty_through_layers_is_refused_with_the_cure(loss: Any) -> None:
    with pytest.raises(Refusal, match=r"(?s)gradient penalty.*backend=sordino\.per_sample\.Loop\(\)"):
        Captured().per_sample(mlp(), loss, (X,))


@pytest.mark.parametrize("loss", [at_the_outputs, adversarial])
def test_gradients_that_use_no_weight_twice_are_exact(loss: Any) -> None:
    torch.manual_seed(0)
    same(mlp().double(), (X.double(),), loss)


def test_the_cure_ends_in_a_claim() -> None:
    torch.manual_seed(0)
    model, data = mlp(), torch.utils.data.TensorDataset(torch.randn(20, 4))
    query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
    private = sd.Private(model, penalised, query, backend=Loop(), seed=0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for lot in private.draws(data, sd.Poisson(0.5), steps=3):
        private.backward(lot)
        optimizer.step()
    assert isinstance(private.claim(1e-5), sd.Guarantee)
