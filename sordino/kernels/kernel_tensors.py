"""Helpers for tensors of kernels: which can be read, where results go, numbers for checks."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TypeAlias

import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensor

Room: TypeAlias = Callable[[tuple[int, ...], Tensor], Tensor]
"""Makes an uninitialised tensor of that shape, of the dtype and on the device of another: a caller may reuse buffers."""


_OWNER_ONLY = 2  # references to a storage: the owner's tensor, and the handle that asks


def is_free(buffer: Tensor) -> bool:
    """Returns whether a buffer for a kernel's results is free: no tensor shares its memory but the one its owner keeps."""
    storage = buffer.untyped_storage()
    count: int = torch._C._storage_Use_Count(storage._cdata)
    return count <= _OWNER_ONLY


def allocate(shape: tuple[int, ...], like: Tensor) -> Tensor:
    """Returns new memory from the allocator, as a `Room`."""
    return like.new_empty(shape)


def are_cpu_floats(*tensors: Tensor) -> bool:
    """Returns whether all are float32 on the CPU, which is all that kernels read and write.

    Tensors of a pass that is traced have no values, and are left to torch.
    """
    return all([x.dtype is torch.float32 and x.is_cpu and type(x) is not FakeTensor for x in tensors])  # noqa: C419


def make_waves(step: float, *shape: int) -> Tensor:
    """Returns some numbers for a check, channels last, without touching a random stream."""
    made = (torch.arange(prod(shape), dtype=torch.float32) * step).sin().view(shape)
    return made.contiguous(memory_format=torch.channels_last)
