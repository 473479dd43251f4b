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
    """Returns whether a tensor is a row shard, divided among ranks.

    It is asked of every parameter, often. Where nobody imported the module of DTensor there are none.
    """
    if type(tensor) is Tensor or type(tensor) is nn.Parameter:
        return False
    home: Any = sys.modules.get(_HOME)
    return home is not None and isinstance(tensor, home.DTensor)


def local_rows(tensor: Tensor) -> Tensor:
    """Returns the rows of a row shard that this rank holds, where they lie; a tensor that is not divided is returned
    itself.
    """
    if type(tensor) is Tensor or not is_shard(tensor):
        return tensor
    rows: Tensor = tensor._local_tensor  # type: ignore[attr-defined]
    return rows


def version_of(tensor: Tensor) -> int:
    """Returns the version of a row shard or another tensor: a number that every write through torch moves, also one to
    the rows of this rank alone.
    """
    if type(tensor) is Tensor:
        return tensor._version
    rows = local_rows(tensor)
    return tensor._version if rows is tensor else tensor._version + rows._version


def gather_tensor(tensor: Tensor) -> Tensor:
    """Returns all rows of a row shard, by an all-gather that every rank must join; a tensor that is not divided is
    returned itself.
    """
    if not is_shard(tensor):
        return tensor
    with torch.no_grad():
        gathered: Tensor = tensor.full_tensor()  # type: ignore[attr-defined]
        return gathered


def own_stretch(shard: Any) -> tuple[int, int]:
    """Returns the first coordinate of this rank's rows among all, end to end, and their number."""
    first: int = shard.device_mesh.get_local_rank() * stretch_width(shard)
    return min(first, shard.numel()), shard._local_tensor.numel()


def stretch_width(shard: Any) -> int:
    """Returns how many coordinates a rank has room for; the last ranks may hold fewer, or none."""
    rows = -(-shard.shape[0] // shard.device_mesh.size())
    return int(rows * (shard.numel() // shard.shape[0] if shard.shape[0] else 0))


def shard_from_rows(shard: Any, own_rows: Tensor) -> Tensor:
    """Returns a row shard divided as `shard` is, of which this rank has the rows `own_rows`."""
    rows = own_rows.view(shard._local_tensor.shape)
    home: Any = sys.modules[_HOME]
    made: Tensor = home.DTensor.from_local(
        rows, shard.device_mesh, shard.placements, run_check=False, shape=shard.shape, stride=shard.stride()
    )
    return made


def shard_like(shard: Tensor, given: Tensor) -> Tensor:
    """Returns this rank's rows of a tensor that every rank has completely, divided as `shard` is."""
    start, count = own_stretch(shard)
    return shard_from_rows(shard, given.detach().reshape(-1)[start : start + count].clone())


def gather_nested(thing: Any) -> Any:
    """Returns a structure of lists and dicts with every row shard in it gathered."""
    if isinstance(thing, Tensor):
        return gather_tensor(thing)
    if isinstance(thing, dict):
        return {key: gather_nested(value) for key, value in thing.items()}
    if type(thing) in (list, tuple):
        return type(thing)(map(gather_nested, thing))
    return thing
