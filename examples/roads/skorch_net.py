"""skorch's classifier, private: scikit-learn's interface around a torch module."""

import numpy as np
import torch
from torch import nn

from sordino.integrations import Privacy
from sordino.integrations.skorch import NeuralNetClassifier

x = np.random.default_rng(0).normal(size=(2000, 20)).astype("float32")
y = (x[:, 0] > x[:, 1]).astype("int64")
net = NeuralNetClassifier(
    nn.Sequential(nn.Linear(20, 32), nn.ReLU(), nn.Linear(32, 2)),
    privacy=Privacy.target(epsilon=3.0, delta=1e-5, bound=1.0),
    max_epochs=5,
    batch_size=100,  # the expected lot
    optimizer=torch.optim.Adam,
    lr=0.01,
    classes=[0, 1],
)
net.fit(x[:1500], y[:1500])
print(f"accuracy {net.score(x[1500:].copy(), y[1500:]):.2f}")
print(net.claim_)
