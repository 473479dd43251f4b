"""A model's parameters as a short string: equal exactly where every bit is."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def digest(model: nn.Module) -> str:
    """Of the parameters, bit by bit."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]
