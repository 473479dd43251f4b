"""The digest of a model's parameters: a short string that is equal exactly if every bit is equal."""

from __future__ import annotations

import hashlib

import torch
from torch import nn


def parameter_digest(model: nn.Module) -> str:
    """Returns the digest of a model's parameters and buffers."""
    hasher = hashlib.sha256()
    for name, tensor in model.state_dict().items():
        hasher.update(name.encode())
        hasher.update(tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().data)
    return hasher.hexdigest()[:32]
