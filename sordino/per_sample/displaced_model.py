"""Moves a model's trainable parameters by given vectors for a while, and puts them back exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sordino.distributed.layer_by_layer import passed_by_all, rows_behind
from sordino.distributed.row_shard import is_shard, local, own_part, whole
from sordino.per_sample.protocol import trainable


@contextmanager
def displaced(model: nn.Module, by: Mapping[str, Tensor]) -> Iterator[None]:
    """Moves the parameters to θ + by inside the context, and back to θ to the last bit after it.

    Parameters missing from `by`, and frozen ones, stay where they are. Of a parameter that comes and goes layer by
    layer each rank moves its rows, until no rank needs them moved any more.
    """
    moved = {name: rows_behind(p) for name, p in trainable(model).items() if name in by}
    with torch.no_grad():
        # Keep copies: subtracting the step again would not give the same bits.
        before = [local(p).clone() for p in moved.values()]
        for name, p in moved.items():
            step = by[name]
            if is_shard(p):
                step = local(step if is_shard(step) else own_part(p, step))
            local(p).add_(whole(step).to(device=p.device, dtype=p.dtype))
    try:
        yield
        passed_by_all()
    finally:
        with torch.no_grad():
            for p, was in zip(moved.values(), before, strict=True):
                local(p).copy_(was)
