"""What is summed is what was measured, whichever generator a model draws from."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from sordino.per_sample import Captured, PerformanceOptions
from tests.per_sample.oracle import square

DRAWS = {
    "torch": lambda: float(torch.rand(())),
    "numpy": lambda: float(np.random.rand()),
    "python": random.random,
}


class Scaled(nn.Module):
    """Scales its batch by a random number in training, as an augmentation might."""

    def __init__(self, draw: Any, checkpointed: bool) -> None:
        super().__init__()
        self.first, self.last, self.draw, self.checkpointed = nn.Linear(4, 5), nn.Linear(5, 3), draw, checkpointed

    def _scaled(self, x: Tensor) -> Tensor:
        y: Tensor = self.first(x * (0.1 + 10 * self.draw() if self.training else 1.0)).tanh()
        return y

    def forward(self, x: Tensor) -> Tensor:
        y = checkpoint(self._scaled, x, use_reentrant=False) if self.checkpointed else self._scaled(x)
        out: Tensor = self.last(y)
        return out


@pytest.mark.parametrize("checkpointed", [False, True], ids=("plain", "checkpointed"))
@pytest.mark.parametrize("draw", DRAWS)
def test_two_passes_draw_the_same(draw: str, checkpointed: bool) -> None:
    torch.manual_seed(0)
    np.random.seed(0)
    random.seed(0)
    model, x = Scaled(DRAWS[draw], checkpointed), torch.randn(5, 4)
    grads = Captured(PerformanceOptions(two_pass=True)).per_sample(model, square, (x,))
    norms = grads.norms().squared  # (B, P)
    for i in range(len(x)):
        alone = grads.weighted_sum(nn.functional.one_hot(torch.tensor(i), len(x)).float()[:, None])
        summed = torch.stack([t.square().sum() for t in alone.values()])
        torch.testing.assert_close(summed, norms[i], rtol=1e-5, atol=0.0)


@pytest.mark.parametrize("draw", DRAWS)
def test_a_first_batch_leaves_the_generators_where_its_own_pass_left_them(draw: str) -> None:
    torch.manual_seed(0)
    backend, model, x = Captured(), Scaled(DRAWS[draw], False), torch.randn(5, 4)
    backend.per_sample(model, square, (x,))
    found = []
    for one in (backend, Captured()):  # a model met before, and one whose layers are looked at first
        torch.manual_seed(1)
        np.random.seed(1)
        random.seed(1)
        one.per_sample(model, square, (x,))
        found.append(DRAWS[draw]())
    assert found[0] == found[1]
