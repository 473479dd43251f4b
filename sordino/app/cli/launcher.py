"""Joins the processes that torchrun or another launcher started into one process group.

Launchers set RANK and WORLD_SIZE.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist

BACKEND = "gloo"
"""Runs of recipes are on the CPU."""


@contextmanager
def join_process_group() -> Iterator[bool]:
    """Joins the ranks that a launcher such as torchrun started into one process group, if there are any; yields whether
    this process prints and writes.
    """
    if "RANK" not in os.environ or "WORLD_SIZE" not in os.environ:
        yield True
        return
    dist.init_process_group(BACKEND)
    try:
        yield dist.get_rank() == 0
    finally:
        dist.destroy_process_group()
