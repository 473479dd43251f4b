"""A loop with accelerate: it prepares model and optimizer, the lots stay sordino's."""

import torch
from accelerate import Accelerator
from torch import nn

import sordino as sd

x = torch.randn(1000, 20)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > x[:, 1]).long())
model = nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2))
accelerator = Accelerator()
model, optimizer = accelerator.prepare(model, torch.optim.AdamW(model.parameters(), lr=1e-2))


def loss_fn(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1)))
for lot in private.draws(data, sd.Poisson(rate=0.1), steps=50, expected_batch=100):
    private.backward(lot)  # in place of accelerator.backward(loss)
    optimizer.step()
print(private.claim(delta=1e-5))
