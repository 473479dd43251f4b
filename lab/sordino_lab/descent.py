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
        """Returns θ·x for every record."""
        return x @ self.theta


Loss = Callable[[nn.Module, Tensor, Tensor], Tensor]


@dataclass(frozen=True, eq=False)
class DescentPath:
    """Where the parameters were before and after every step, and what can be said of the run."""

    points: Tensor  # (steps + 1, d)
    claim: Claim | None
    diverged: bool


def dp_sgd_query(bound: float, multiplier: float) -> NoisySum:
    """Returns the query of DP-SGD: clipped gradients, summed, with Gaussian noise."""
    return NoisySum(Flat(bound), Gaussian(multiplier))


def descend(
    start: Sequence[float],
    loss_fn: Loss,
    x: Tensor,
    y: Tensor,
    query: Query,
    learning_rate: float,
    steps: int,
    *,
    sampler: Sampler | None = None,
    penalty: float = 0.0,
    decay: float = 0.0,
    optimizer: Callable[..., torch.optim.Optimizer] = torch.optim.SGD,
    seed: int = 0,
    delta: float | None = None,
) -> DescentPath:
    """Trains a `DescentPoint` by gradient descent through `Private` and returns its path, with a claim if `delta` is
    given.
    """
    # Decay is the optimizer's and acts after the noise; the penalty is in each record's gradient.
    model = DescentPoint(start)
    options = {"weight_decay": decay} if decay else {}
    chosen_optimizer = optimizer(model.parameters(), lr=learning_rate, **options)
    private = Private(model, loss_fn, query, penalty=L2(penalty) if penalty else None, seed=seed)
    # Every point of the path is released, so keeping it costs nothing.
    points = [model.theta.detach().clone()]
    for lot in private.draws(TensorDataset(x, y), Full() if sampler is None else sampler, steps):
        private.backward(lot)
        chosen_optimizer.step()
        points.append(model.theta.detach().clone())
    claim = private.claim(delta) if delta is not None else None
    return DescentPath(torch.stack(points), claim, private.diverged is not None)


def squared_error(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Returns ½(θ·x − y)² for every record."""
    prediction: Tensor = model(x)
    return 0.5 * (prediction - y) ** 2
