"""Two tasks with one trunk: the losses of a record are added up, because the privacy of a record is that of both."""

import torch
from torch import nn
from torch.nn.functional import cross_entropy, mse_loss

import sordino as sd

x = torch.randn(400, 6)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long(), x[:, 1:2] * 2)
model = nn.ModuleDict({"trunk": nn.Linear(6, 8), "kind": nn.Linear(8, 2), "price": nn.Linear(8, 1)})


def loss_fn(model, x, kind, price):
    features = model["trunk"](x).relu()
    price_loss = mse_loss(model["price"](features), price, reduction="none").squeeze(1)
    return cross_entropy(model["kind"](features), kind, reduction="none") + 0.5 * price_loss


private = sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
for lot in private.draws(data, batch_size=40, epochs=2):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))
