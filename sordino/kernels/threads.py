"""A compiled function over a range, in as many threads as torch uses: ctypes lets go of the interpreter during a call."""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from itertools import pairwise


@cache
def _pool(process: int, threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="sordino")


def in_parts(run: Callable[[int, int], None], end: int, threads: int, multiple: int = 1) -> None:
    """`run(begin, end)` for consecutive ranges that cover [0, end), each beginning at a multiple of `multiple`.

    The first runs on this thread, so that its own clock tells what the work costs.
    """
    cuts = [round(end * k / threads / multiple) * multiple for k in range(threads)] + [end]
    ranges = [(a, b) for a, b in pairwise(cuts) if a < b]
    others = [_pool(os.getpid(), threads - 1).submit(run, *cut) for cut in ranges[1:]]
    for cut in ranges[:1]:
        run(*cut)
    for other in others:
        other.result()
