"""The digest of a model's parameters: a short string that is equal exactly if every bit is equal."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def digest(model: nn.Module) -> str:
    """Returns the digest of a model's parameters and buffers."""
    found = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        found.update(name.encode())
        found.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return found.hexdigest()[:32]
