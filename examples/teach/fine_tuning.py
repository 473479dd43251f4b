"""Fine-tuning: a pretrained body stays frozen at first, then its last layer is trained too. Frozen layers cost no noise."""

import torch
from torch.utils.data import TensorDataset

import sordino as sd

torch.manual_seed(0)
x = torch.randn(2000, 10)
data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())

body = torch.nn.Sequential(torch.nn.Linear(10, 32), torch.nn.ReLU(), torch.nn.Linear(32, 16), torch.nn.ReLU())
head = torch.nn.Linear(16, 2)
model = torch.nn.Sequential(body, head)  # one module: what is beside it would not be covered
body.requires_grad_(False)  # pretrained on public data, say


def loss_fn(model, x, y):
    """One loss per record."""
    return torch.nn.functional.cross_entropy(model(x), y, reduction="none")


private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(bound=1.0), sd.Gaussian(multiplier=2.0)))
optimizer = torch.optim.AdamW(head.parameters(), lr=0.02)
for lot in private.draws(data, sd.Poisson(rate=0.05), steps=30, expected_batch=100):
    private.backward(lot)
    optimizer.step()

body[2].requires_grad_(True)  # thaw between two calls of draws; the ledger goes on
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=0.005)
for lot in private.draws(data, sd.Poisson(rate=0.05), steps=30, expected_batch=100):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))  # of both phases together
