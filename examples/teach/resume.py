"""Stop and go on: the state holds the ledger, so what was spent is not forgotten. It is as secret as the data."""

import io

import torch
from torch.utils.data import TensorDataset

import sordino as sd

torch.manual_seed(0)
x = torch.randn(2000, 10)
data = TensorDataset(x, (x[:, 0] > x[:, 1]).long())


def loss_fn(model, x, y):
    """One loss per record."""
    return torch.nn.functional.cross_entropy(model(x), y, reduction="none")


def begun():
    """Model, optimizer and the private loop, as a script makes them each time it is started."""
    model = torch.nn.Linear(10, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    return model, optimizer, sd.Private(model, loss_fn, sd.NoisySum(sd.Flat(bound=1.0), sd.Gaussian(multiplier=2.0)))


model, optimizer, private = begun()
for lot in private.draws(data, sd.Poisson(rate=0.05), steps=60, expected_batch=100):
    private.backward(lot)
    optimizer.step()
    if private.steps == 25:
        break
file = io.BytesIO()  # on a disk: readable by you alone
torch.save([model.state_dict(), optimizer.state_dict(), private.state_dict()], file)

file.seek(0)
model, optimizer, private = begun()
for part, state in zip((model, optimizer, private), torch.load(file), strict=True):
    part.load_state_dict(state)
for lot in private.draws(data, sd.Poisson(rate=0.05), steps=60 - private.steps, expected_batch=100):
    private.backward(lot)
    optimizer.step()
print(private.claim(delta=1e-5))  # of all 60 steps
