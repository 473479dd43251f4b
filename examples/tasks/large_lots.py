"""Lots larger than memory: 512 records a step on average, 64 of them at once. The result is the same."""

import torch
from torch import nn

import sordino as sd

x = torch.randn(2000, 8)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))


def loss_fn(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


private = sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for lot in private.draws(data, batch_size=512, epochs=3, physical_batch=64):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))
