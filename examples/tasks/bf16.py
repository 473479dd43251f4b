"""Mixed precision: the forward pass in bfloat16 by autocast; norms, sums and noise stay exact."""

import torch
from torch import nn

import sordino as sd

x = torch.randn(400, 8)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 2))


def loss_fn(model, x, y):
    with torch.autocast("cpu", dtype=torch.bfloat16):  # "cuda" on a GPU
        scores = model(x)
    return nn.functional.cross_entropy(scores.float(), y, reduction="none")


private = sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for lot in private.draws(data, batch_size=40, epochs=2):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))
