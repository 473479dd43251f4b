"""Integrations on a device: skorch trains where its option says. The others know only the devices that they list."""

import warnings

import numpy as np
import pytest
import torch
from torch import nn

import sordino as sd
from sordino.integrations import Privacy
from tests.device.simulated import start

start()

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    pytest.importorskip("skorch", reason="skorch is in the extra [skorch]")
    from sordino.integrations.skorch import NeuralNetClassifier

X = np.random.default_rng(0).normal(size=(400, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")


def fit(device):
    torch.manual_seed(0)
    privacy = Privacy.target(epsilon=5.0, delta=1e-4, bound=1.0)
    settings = {"privacy": privacy, "max_epochs": 4, "batch_size": 100, "optimizer": torch.optim.Adam, "lr": 0.05}
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))
    return NeuralNetClassifier(model, classes=[0, 1], verbose=0, device=device, **settings).fit(X, Y)


@pytest.mark.filterwarnings("ignore")
def test_a_net_of_skorch_trains_on_the_device_and_has_the_claim_of_the_cpu():
    here, there = fit("cpu"), fit("sim")
    assert {p.device.type for p in there.module_.parameters()} == {"sim"}
    assert isinstance(there.claim_, sd.Guarantee), there.claim_
    assert there.claim_.epsilon == here.claim_.epsilon
    assert there.predict(X).shape == (400,)
