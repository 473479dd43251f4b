"""An average of the weights (EMA): made of released parameters, so it costs nothing, and most of the noise averages out."""

import torch
from torch.utils.data import TensorDataset

import sordino as sd

torch.manual_seed(0)
x = torch.randn(2000, 10)
data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())

model = torch.nn.Linear(10, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
average = sd.optim.Average(model, decay=0.95)


def loss_fn(model, x, y):
    """One loss per record."""
    return torch.nn.functional.cross_entropy(model(x), y, reduction="none")


private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(bound=1.0), sd.Gaussian(multiplier=2.0)))
for lot in private.draws(data, sd.Poisson(rate=0.05), steps=60, expected_batch=100):
    private.backward(lot)
    optimizer.step()
    average.update()
with average.swap_temporarily(), torch.no_grad():  # public records of the same kind
    fresh = torch.randn(1000, 10)
    right = (model(fresh).argmax(1) == (fresh[:, 0] > fresh[:, 1])).float().mean()
print(private.claim(delta=1e-5))
assert right > 0.8, right
