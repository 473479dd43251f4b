"""A diffusion model: every record is noised at a time of its own, and the network learns to tell the noise."""

import torch
from torch import nn

import sordino as sd

data = torch.utils.data.TensorDataset(torch.randn(400, 2) * 0.3 + torch.tensor([2.0, -1.0]))
model = nn.Sequential(nn.Linear(3, 32), nn.SiLU(), nn.Linear(32, 2))
kept = torch.linspace(0.99, 0.01, 50)  # share of the signal that is left at each time


def loss_fn(model, x):
    time = torch.randint(0, 50, (len(x),))
    noise, share = torch.randn_like(x), kept[time].unsqueeze(1)
    noised = share.sqrt() * x + (1 - share).sqrt() * noise
    return (model(torch.cat([noised, time.unsqueeze(1) / 50], dim=1)) - noise).square().mean(1)


private = sd.Private(model, loss_fn, epsilon=5.0, delta=1e-5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for lot in private.draws(data, batch_size=40, epochs=3):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))
