"""A variational autoencoder with binary cross-entropy: pixels in [0, 1], one loss per image."""

import torch
from torch import nn
from torch.nn.functional import binary_cross_entropy

import sordino as sd

data = torch.utils.data.TensorDataset(torch.rand(400, 16).round())
model = nn.ModuleDict({"encoder": nn.Linear(16, 4), "decoder": nn.Sequential(nn.Linear(2, 16), nn.Sigmoid())})


def loss_fn(model, x):
    mean, log_variance = model["encoder"](x).chunk(2, dim=1)
    z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1)
    return binary_cross_entropy(model["decoder"](z), x, reduction="none").sum(1) + divergence


private = sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for lot in private.draws(data, batch_size=40, epochs=2):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))
