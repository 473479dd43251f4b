"""Small problems trained step by step through `Private`: functions of a few parameters whose paths are drawn."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.clipping.flat import Flat
from sordino.ledger.claims import Claim
from sordino.penalty import L2
from sordino.private import Private
from sordino.queries.noisy_sum import NoisySum, Query
from sordino.release.noise import Gaussian
from sordino.sampling.full import Full
from sordino.sampling.sampler import Sampler


class DescentPoint(nn.Module):
    """Parameters and nothing else."""

    def __init__(self, start: Sequence[float]) -> None:
        super().__init__()
        self.theta = nn.Parameter(torch.tensor(start, dtype=torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """θ·x for every record."""
        return x @ self.theta


Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class Path:
    """Where the parameters were before and after every step, and what can be said of the run."""

    points: Tensor  # (steps + 1, d)
    claim: Claim | None
    diverged: bool


def query(bound: float, multiplier: float) -> NoisySum:
    """DP-SGD's."""
    return NoisySum(Flat(bound), Gaussian(multiplier))


def descend(
    start: Sequence[float],
    loss_fn: Loss,
    x: Tensor,
    y: Tensor,
    ask: Query,
    learning_rate: float,
    steps: int,
    *,
    sampler: Sampler | None = None,
    penalty: float = 0.0,
    decay: float = 0.0,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    seed: int = 0,
    delta: float | None = None,
) -> Path:
    """Train a `Point` and keep its path."""
    model = DescentPoint(start)
    options = {"weight_decay": decay} if decay else {}
    stepper = optimizer(model.parameters(), lr=learning_rate, **options)
    private = Private(model, loss_fn, ask, penalty=L2(penalty) if penalty else None, seed=seed)
    points = [model.theta.detach().clone()]
    for lot in private.draws(TensorDataset(x, y), Full() if sampler is None else sampler, steps):
        private.backward(lot)
        stepper.step()
        points.append(model.theta.detach().clone())
    said = private.claim(delta) if delta is not None else None
    return Path(torch.stack(points), said, private.diverged is not None)


def squared(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """½(θ·x − y)²."""
    out: Tensor = model(x)
    return 0.5 * (out - y) ** 2
