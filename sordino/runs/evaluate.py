"""Accuracy and loss on the test set, which is taken to be public."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

_CHUNK = 2000


def evaluate(model: nn.Module, test: TensorDataset) -> tuple[float, float]:
    """The share of test records classified rightly, and the mean cross-entropy."""
    training = model.training
    model.eval()
    right, loss = 0, 0.0
    x, y = test.tensors
    with torch.no_grad():
        for inputs, labels in zip(x.split(_CHUNK), y.split(_CHUNK), strict=True):
            scores = model(inputs)
            right += int((scores.argmax(dim=1) == labels).sum())
            loss += float(nn.functional.cross_entropy(scores, labels, reduction="sum"))
    model.train(training)
    return right / len(y), loss / len(y)
