"""A dataset of Hugging Face's `datasets` is taken as it is: its fields come to the loss by name."""

import datasets
import torch
from torch import nn

import sordino as sd

x = torch.randn(300, 4)
data = datasets.Dataset.from_dict({"features": x.tolist(), "labels": (x[:, 0] > 0).long().tolist()})
model = nn.Linear(4, 2)


def loss_fn(model, features, labels):
    return nn.functional.cross_entropy(model(features), labels, reduction="none")


private = sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5)
optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
for lot in private.draws(data, batch_size=30, epochs=2):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))
