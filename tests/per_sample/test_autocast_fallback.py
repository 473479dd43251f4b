"""A layer without a rule is measured in the precision that it computed in."""

from types import MethodType

import pytest
import torch
from torch import Tensor, nn

from sordino.per_sample import Captured, Loop, PerformanceOptions


class Own(nn.Module):
    """A product of one's own, which no rule knows."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 5))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.weight


def in_half(model: nn.Module, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        y = model(x)
    return y.float().square().flatten(1).sum(1)


@pytest.mark.parametrize("two_pass", [False, True], ids=("one pass", "two passes"))
@pytest.mark.parametrize("shape", [(6,), (7, 6)], ids=str)
def test_under_autocast_in_the_loss_it_is_the_loops(shape: tuple[int, ...], two_pass: bool) -> None:
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), Own()), torch.randn(4, *shape)
    grads = Captured(PerformanceOptions(two_pass=two_pass)).per_sample(model, in_half, (x,))
    loop = Loop().per_sample(model, in_half, (x,))
    eps = torch.finfo(torch.bfloat16).eps
    torch.testing.assert_close(grads.norms().total(), loop.norms().total(), rtol=4 * eps, atol=0.0)
    w = torch.rand(4, 1)
    wanted = loop.weighted_sum(w)
    for name, total in grads.weighted_sum(w).items():
        torch.testing.assert_close(total, wanted[name], rtol=0.0, atol=8 * eps * float(wanted[name].abs().max()))


def test_a_chain_of_layers_with_a_forward_of_its_own_is_run_by_that() -> None:
    """As accelerate puts autocast around a model's forward: the layers must not run as one, in float32."""
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 3)), torch.randn(4, 6)

    def forward_in_half(self: nn.Sequential, x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return nn.Sequential.forward(self, x).float()

    model.forward = MethodType(forward_in_half, model)
    losses = Captured().per_sample(model, lambda m, x: m(x).square().sum(1), (x,)).losses
    torch.testing.assert_close(losses, model(x).square().sum(1).detach(), rtol=0.0, atol=0.0)
