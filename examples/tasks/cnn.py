"""A convolutional network on images, with the DataLoader that you have: it brings dataset, batch size and workers."""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import sordino as sd

images, labels = torch.rand(400, 1, 8, 8), torch.randint(0, 2, (400,))
images[labels == 1, :, :4] += 0.5
loader = DataLoader(TensorDataset(images, labels), batch_size=40)
model = nn.Sequential(nn.Conv2d(1, 8, 3), nn.GroupNorm(2, 8), nn.ReLU(), nn.Flatten(), nn.Linear(8 * 36, 2))


def loss_fn(model, images, labels):
    return nn.functional.cross_entropy(model(images), labels, reduction="none")  # one loss per record


private = sd.Private(model, loss_fn, epsilon=3.0, delta=1e-5, clip=1.0)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for lot in private.draws(loader, epochs=2):
    private.backward(lot)  # clips, adds noise, writes .grad
    optimizer.step()
print(private.claim(delta=1e-5))
