"""Joins the processes that torchrun or another launcher started into one process group.

Launchers set RANK and WORLD_SIZE.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.distributed as dist

BACKEND = "gloo"
"""The library that carries tensors of the CPU between ranks."""


@contextmanager
def join_process_group(device: str | None = None) -> Iterator[bool]:
    """Joins the ranks that a launcher such as torchrun started into one process group, if there are any; yields whether
    this process prints and writes.

    `device` is what the run's option of that name says. If it is an accelerator, the group gets the library for its
    tensors too, such as nccl, and the process takes the device of its own number.
    """
    # Without a launcher there is one process, which prints.
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield True
        return
    from sordino.app.runs.run_device import resolve_device

    # Sums travel as whole numbers by the CPU's library; the accelerator's is there for its own tensors.
    own_device = resolve_device(device)
    if own_device is None or own_device.type == "cpu":
        dist.init_process_group(BACKEND)
    else:
        torch.accelerator.set_device_index(own_device.index or 0)
        library = dist.get_default_backend_for_device(own_device)
        dist.init_process_group(f"cpu:{BACKEND},{own_device.type}:{library}")
    try:
        yield dist.get_rank() == 0
    finally:
        dist.destroy_process_group()
