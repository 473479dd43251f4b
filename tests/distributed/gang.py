"""Three processes on gloo that do jobs together: groups of one, two or three of them, made once for all tests."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from sordino.distributed.process_group import Ranks

PROCESSES = 3
PATIENCE = 60.0


def fork_server() -> Any:
    """Where processes come from: one that has imported torch and the jobs, so that the others need not."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.distributed.divided_run", "tests.distributed.sharded_jobs"])
    return context


class Failed(Exception):
    """A job raised; what it said, by rank."""


class Gang:
    """`gang(job, 2, …)` calls `job(ranks, …)` in two processes and gives back what each returned."""

    def __init__(self, folder: Path) -> None:
        context = fork_server()
        self._given = [context.Queue() for _ in range(PROCESSES)]
        self._made = context.Queue()
        self._processes = [
            context.Process(target=_work, args=(rank, str(folder / "store"), self._given[rank], self._made))
            for rank in range(PROCESSES)
        ]
        for process in self._processes:
            process.start()

    def __call__(self, job: Callable[..., Any], size: int, *args: Any) -> list[Any]:
        for rank in range(size):
            self._given[rank].put((job, size, args))
        found: dict[int, tuple[bool, Any]] = {}
        while len(found) < size:
            rank, fine, result = self._made.get(timeout=PATIENCE)
            found[rank] = fine, result
        results = [found[rank] for rank in range(size)]
        if not all(fine for fine, _ in results):
            raise Failed("\n".join(str(result) for fine, result in results if not fine))
        return [result for _, result in results]

    def close(self) -> None:
        for given in self._given:
            given.put(None)
        for process in self._processes:
            process.join(timeout=10)
            if process.is_alive():
                process.kill()


def _work(rank: int, store: str, given: Any, made: Any) -> None:
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=PROCESSES, timeout=timedelta(seconds=20)
    )
    groups = {size: dist.new_group(list(range(size)), timeout=timedelta(seconds=20)) for size in (1, 2, 3)}
    while (task := given.get()) is not None:
        job, size, args = task
        try:
            made.put((rank, True, job(Ranks(groups[size]), *args)))
        except Exception:
            made.put((rank, False, traceback.format_exc()))
    dist.destroy_process_group()
    os._exit(0)  # nothing is left to tidy, and torch takes seconds over it
