"""Row shards: tensors of which each rank holds some rows (torch's DTensor).

DTensors compute by themselves, and some of what they compute is a message to the other ranks. So the library reads and
writes the rows of its own rank, and asks for the whole by name.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

_HOME = "torch.distributed.tensor"


def is_shard(tensor: Tensor) -> bool:
    """Returns whether a tensor is divided among ranks.

    It is asked of every parameter, often. Where nobody imported the module of DTensor there are none.
    """
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:
        return False
    home: Any = sys.modules.get(_HOME)
    return home is not None and isinstance(tensor, home.DTensor)


def local(tensor: Tensor) -> Tensor:
    """Returns the rows that this rank holds, where they lie; a tensor that is not divided is returned itself."""
    if type(tensor) is Tensor or not is_shard(tensor):
        return tensor
    own: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
    return own


def version(tensor: Tensor) -> int:
    """Returns a number that every write through torch moves, also one to the rows of this rank alone."""
    if type(tensor) is Tensor:
        return tensor._version
    own = local(tensor)
    return tensor._version if own is tensor else tensor._version + own._version


def whole(tensor: Tensor) -> Tensor:
    """Returns all rows, by an all-gather that every rank must join; a tensor that is not divided is returned itself."""
    if not is_shard(tensor):
        return tensor
    with torch.no_grad():
        found: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
        return found


def stretch(shard: Any) -> tuple[int, int]:
    """Returns the first coordinate of this rank's rows among all, end to end, and their number."""
    first: int = shard.device_mesh.get_local_rank() * width(shard)
    return min(first, shard.numel()), shard._local_tensor.numel()


def width(shard: Any) -> int:
    """Returns how many coordinates a rank has room for; the last ranks may hold fewer, or none."""
    rows = -(-shard.shape[0] // shard.device_mesh.size())
    return int(rows * (shard.numel() // shard.shape[0] if shard.shape[0] else 0))


def with_rows(shard: Any, own: Tensor) -> Tensor:
    """Returns a tensor divided as this one is, of which this rank has these values."""
    rows = own.view(shard._local_tensor.shape)
    home: Any = sys.modules[_HOME]
    made: Tensor = home.DTensor.from_local(
        rows, shard.device_mesh, shard.placements, run_check=False, shape=shard.shape, stride=shard.stride()
    )
    return made


def own_part(shard: Tensor, given: Tensor) -> Tensor:
    """Returns this rank's rows of a tensor that every rank has completely, divided as `shard` is."""
    start, count = stretch(shard)
    return with_rows(shard, given.detach().reshape(-1)[start : start + count].clone())


def gathered(thing: Any) -> Any:
    """Returns a structure of lists and dicts with every tensor gathered."""
    if isinstance(thing, Tensor):
        return whole(thing)
    if isinstance(thing, dict):
        return {key: gathered(value) for key, value in thing.items()}
    if type(thing) in (list, tuple):
        return type(thing)(map(gathered, thing))
    return thing
