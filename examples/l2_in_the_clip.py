"""The L2 penalty inside the clip: every gradient has λθ added before it is shortened."""

import torch

import sordino as sd
from sordino.app.data import linear


def loss_fn(model: torch.nn.Module, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """One loss per record."""
    return (model(x) - y).square().mean(dim=1)


data = linear([1.0, -2.0, 0.5], n=500)
model = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.Tanh(), torch.nn.Linear(8, 1))
query = sd.NoisySum(sd.Flat(bound=1.0), sd.Gaussian(multiplier=1.1))
sampler = sd.Poisson(rate=0.1)
private = sd.Private(model, loss_fn, query, penalty=sd.L2(0.01))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for lot in private.draws(data, sampler, steps=30):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))
