"""Train, load, predict, export: a run directory holds what is needed to use the model elsewhere."""

import tempfile
from pathlib import Path

import torch

import sordino as sd

x = torch.randn(500, 4)
data = torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())
folder = Path(tempfile.mkdtemp())
history = sd.fit(torch.nn.Linear(4, 2), data, epsilon=3.0, steps=40, rate=0.1, out=folder / "run")
trained = sd.load(history.run, model=torch.nn.Linear(4, 2))
print(trained.predict(torch.zeros(3, 4)))
program = torch.export.load(trained.export(folder / "model.pt2"))
torch.testing.assert_close(program.module()(x[:5]), trained.network(x[:5]))
print(trained.export(folder / "model.safetensors").name)
print(history.claim)
