"""Learning rates by torch's own schedulers: they act on released gradients, so they cost nothing and need no word."""

import torch
from torch.utils.data import TensorDataset

import sordino as sd

torch.manual_seed(0)
x = torch.randn(2000, 10)
data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())

model = torch.nn.Linear(10, 2)
optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=60)


def loss_fn(model, x, y):
    """One loss per record."""
    return torch.nn.functional.cross_entropy(model(x), y, reduction="none")


private = sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(bound=1.0), sd.Gaussian(multiplier=2.0)))
for lot in private.draws(data, sd.Poisson(rate=0.05), steps=60, expected_batch=100):
    private.backward(lot)
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)  # of the noisy gradient: as free as the scheduler
    optimizer.step()
    scheduler.step()
print(private.claim(delta=1e-5))
