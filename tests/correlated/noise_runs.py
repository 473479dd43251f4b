"""Runs with correlated noise: what a real `Private` releases when all gradients are zero."""

import numpy as np
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.matrix_factorization.strategies import Strategy
from sordino.matrix_factorization.toeplitz import toeplitz_matrix


def silent_loss(model, x):
    """Returns a loss of every record whose gradient is zero."""
    return 0.0 * model(x).sum(dim=1)


def create_run(strategy: Strategy, *, multiplier: float = 1.0, width: int = 4, seed: int | None = 0, **more):
    """Returns a run on a linear model with `width` coordinates, whose releases are noise alone."""
    model = torch.nn.Linear(width, 1, bias=False)
    query = sd.NoisySum(sd.Flat(1.0), sd.Correlated(multiplier, strategy))
    return sd.Private(model, silent_loss, query, seed=seed, **more), model


def records(count: int, width: int = 4) -> TensorDataset:
    """Returns `count` records."""
    return TensorDataset(torch.randn(count, width, generator=torch.Generator().manual_seed(1)))


def release_all(private, model, lots, leave_out=()) -> np.ndarray:
    """Returns the released vectors of all lots, one row for each; lots that are left out have NaN."""
    rows = []
    for step, lot in enumerate(lots):
        if step in leave_out:
            rows.append(np.full(model.weight.numel(), np.nan))
            continue
        private.backward(lot)
        rows.append(model.weight.grad.double().flatten().numpy().copy())
    return np.array(rows)


def decorrelate(released: np.ndarray, strategy: Strategy) -> np.ndarray:
    """Returns C W, which is the independent noise Z if W = C⁻¹ Z was released."""
    steps = len(released)
    return toeplitz_matrix(strategy.encoder(steps), steps) @ released
