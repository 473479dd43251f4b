"""A compiled function over a range, by as many threads as torch uses: ctypes lets go of the interpreter during a call.

They are torch's own threads where its OpenMP runtime can be found (libgomp, on Linux). After a parallel operation those
wait for the next one by spinning for a while, and a second set of threads would have to share the cores with them.
Elsewhere a pool of threads does the work.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from pathlib import Path
from threading import get_ident

_CALLBACK = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
Team = Callable[[Callable[[], None], int], None]
"""Runs a function in that many threads at once, the calling one among them."""


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sordino")


def _by_pool(work: Callable[[], None], threads: int) -> None:
    others = [_pool(os.getpid(), threads - 1).submit(work) for _ in range(threads - 1)]
    try:
        work()
    finally:  # whoever catches an error may free what the others still write to
        wait(others)
    for other in others:
        other.result()


@cache
def torchs_team() -> Team | None:
    """Torch's own threads, if its OpenMP runtime is one whose entry is known."""
    try:
        maps = Path("/proc/self/maps").read_text().split()
    except OSError:  # not Linux
        return None
    found = sorted({name for name in maps if "libgomp" in name and "torch" in name})
    if len(found) != 1:
        return None
    try:
        parallel = ctypes.CDLL(found[0]).GOMP_parallel
    except (OSError, AttributeError):  # replaced on the disk meanwhile, or another runtime of that name
        return None
    parallel.argtypes, parallel.restype = [_CALLBACK, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint], None

    def team(work: Callable[[], None], threads: int) -> None:
        failed: list[BaseException] = []

        def guarded(_: object) -> None:
            try:
                work()
            except BaseException as error:  # an exception must not unwind through the C runtime
                failed.append(error)

        parallel(_CALLBACK(guarded), None, threads, 0)
        if failed:
            raise failed[0]

    return team


def in_parts(run: Callable[[int, int], None], end: int, threads: int, multiple: int = 1) -> None:
    """`run(begin, end)` for consecutive ranges that cover [0, end), each beginning at a multiple of `multiple`.

    One range runs in the calling thread, whose clock the choice of formulas reads.
    """
    if threads == 1:
        if end > 0:
            run(0, end)
        return
    cuts = [round(end * k / threads / multiple) * multiple for k in range(threads)] + [end]
    ranges = [(a, b) for a, b in pairwise(cuts) if a < b]
    if len(ranges) <= 1:
        for cut in ranges:
            run(*cut)
        return

    own, caller = [ranges.pop(0)], get_ident()

    def work() -> None:
        mine = own if get_ident() == caller else []
        while True:  # however many threads there are, every range is done once
            try:
                cut = mine.pop() if mine else ranges.pop()
            except IndexError:
                return
            run(*cut)

    (torchs_team() or _by_pool)(work, 1 + len(ranges))
