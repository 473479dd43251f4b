"""Moves a model's trainable parameters by given vectors for a while, and puts them back exactly."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from sordino.distributed.layer_by_layer import tensor_with_values, wait_for_all_ranks
from sordino.distributed.row_shard import gather_tensor, is_shard, local_rows, shard_like
from sordino.per_sample.protocol import trainable_parameters


@contextmanager
def displace_model(model: nn.Module, by: Mapping[str, Tensor]) -> Iterator[None]:
    """Displaces a model: moves the parameters to θ + by inside the context, and back to θ to the last bit after it.

    Parameters missing from `by`, and frozen ones, stay where they are. Of a parameter that comes and goes layer by
    layer each rank moves its rows, until no rank needs them moved any more.
    """
    moved = {name: tensor_with_values(p) for name, p in trainable_parameters(model).items() if name in by}
    with torch.no_grad():
        # Keep copies: subtracting the step again would not give the same bits.
        before = [local_rows(p).clone() for p in moved.values()]
        for name, p in moved.items():
            # A sharded model is moved by the rows that this rank holds.
            step = by[name]
            if is_shard(p):
                step = local_rows(step if is_shard(step) else shard_like(p, step))
            local_rows(p).add_(gather_tensor(step).to(device=p.device, dtype=p.dtype))
    # All ranks read the displaced parameters before one of them puts its own back.
    try:
        yield
        wait_for_all_ranks()
    finally:
        with torch.no_grad():
            for p, was in zip(moved.values(), before, strict=True):
                local_rows(p).copy_(was)
