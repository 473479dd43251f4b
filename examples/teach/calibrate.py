"""Aim at an ε: find the noise first, with the query, sampler and steps that will train."""

import torch
from torch.utils.data import TensorDataset

import sordino as sd

torch.manual_seed(0)
x = torch.randn(2000, 10)
data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())

model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
sampler, steps = sd.Poisson(rate=0.05), 60


def loss_fn(model, x, y):
    """One loss per record."""
    return torch.nn.functional.cross_entropy(model(x), y, reduction="none")


def query(sigma):
    """What is asked of every lot, at a noise multiplier."""
    return sd.NoisySum(sd.Flat(bound=1.0), sd.Gaussian(sigma))


sigma = sd.calibrate(query, sampler, steps, epsilon=2.0, delta=1e-5)
private = sd.Private(model, loss_fn, query(sigma))
for lot in private.draws(data, sampler, steps, expected_batch=100):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))  # ε = 2.000
