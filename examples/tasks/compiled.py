"""A compiled model: lots are cut and padded to one shape, and the passes run by the compiler of torch.compile."""

import torch
from torch import nn

import sordino as sd

x = torch.randn(400, 8)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
model = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 2))


def loss_fn(model, x, y):
    return nn.functional.cross_entropy(model(x), y, reduction="none")


compiled = torch.compile(model, backend="aot_eager")  # leave backend out for inductor, which needs a C++ compiler
private = sd.Private(compiled, loss_fn, epsilon=3.0, delta=1e-5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
sampler = sd.TruncatedPoisson(rate=0.1, max_batch=52)
for lot in private.draws(data, sampler, steps=20, expected_batch=40, pad_lots=True):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))
