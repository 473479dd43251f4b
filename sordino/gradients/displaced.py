"""The model somewhere else for a while: its trainable parameters moved by given vectors, and put back exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sordino.gradients.protocol import trainable
from sordino.ranks.shard import whole


@contextmanager
def displaced(model: nn.Module, by: Mapping[str, Tensor]) -> Iterator[None]:
    """θ + by inside, θ to the last bit after it; parameters missing from `by`, and frozen ones, stay where they are."""
    moved = {name: p for name, p in trainable(model).items() if name in by}
    with torch.no_grad():
        before = [p.clone() for p in moved.values()]
        for name, p in moved.items():
            p.add_(whole(by[name]).to(device=p.device, dtype=p.dtype))
    try:
        yield
    finally:
        with torch.no_grad():
            for p, was in zip(moved.values(), before, strict=True):
                p.copy_(was)
