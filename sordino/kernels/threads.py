"""Runs a compiled function over a range, by as many threads as torch uses.

ctypes lets go of the interpreter during a call. The threads are torch's own where its OpenMP runtime can be found
(libgomp, on Linux). After a parallel operation those wait for the next one by spinning for a while, and a second set of
threads would have to share the cores with them. The ranges are handed out by compiled code (threads.c): a thread that
came through the interpreter would wait for its lock. Elsewhere a pool of threads does the work.
"""

from __future__ import annotations

import ctypes
import os
import platform
from array import array
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

from sordino.kernels import build
from sordino.kernels.abi import FLOAT, INT, POINTER, SIZE, pack_numbers, raise_if_short
from sordino.kernels.library import KernelUnavailable, open_library

_NUMBERS, _FLOATS = 12, 2  # that a function may take
_MACHINES = ("x86_64", "amd64", "aarch64", "arm64")
_KERNEL = ctypes.CFUNCTYPE(INT, INT, FLOAT, SIZE, SIZE, SIZE, FLOAT, SIZE)

Arguments = Sequence[Any]
"""Numbers, addresses (None for none), arrays and floats, as ctypes takes them."""


@cache
def _thread_pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Returns the pool of threads of a process."""
    return ThreadPoolExecutor(threads, thread_name_prefix="sordino")


@cache
def find_torch_threads() -> int | None:
    """Returns the address by which torch's own threads are called, if its OpenMP runtime is one whose entry is known."""
    # The runtime is found among the libraries that this process has mapped.
    try:
        maps = Path("/proc/self/maps").read_text().split()
    except OSError:  # not Linux
        return None
    # Exactly one copy, and one that belongs to torch: with two of them it would be a guess whose threads these are.
    found = sorted({name for name in maps if "libgomp" in name and "torch" in name})
    if len(found) != 1 or platform.machine().lower() not in _MACHINES:
        return None
    try:
        entry = ctypes.CDLL(found[0]).GOMP_parallel
    except (OSError, AttributeError):  # replaced on the disk meanwhile, or another runtime of that name
        return None
    return ctypes.cast(entry, ctypes.c_void_p).value


@cache
def _load_team() -> Callable[..., int] | None:
    """Returns the compiled function that hands out ranges to the team of torch's threads, if it gives each range once."""
    # Threads of our own beside torch's would compete with them for the same cores.
    if find_torch_threads() is None:
        return None
    try:
        team = open_library(build.THREADS).sordino_team
    except KernelUnavailable:
        return None
    team.restype, team.argtypes = INT, (POINTER, POINTER, POINTER, POINTER, SIZE, SIZE, POINTER)
    return team if _covers_every_range(team) else None


def _covers_every_range(team: Callable[..., int]) -> bool:
    """Returns whether a team of threads gives a function every range once, with its other arguments where they belong."""
    seen: list[tuple[float, ...]] = []

    # A Python function is called through the team, to see that every argument arrives where it belongs.
    def note_call(*given: float) -> int:
        """Notes the arguments of a call."""
        seen.append(given)
        return 0

    kernel = _KERNEL(note_call)
    _call_team(team, kernel, (7, 0.5), (None, 0.25, 9), [0, 3, 5])
    return sorted(seen) == [(7, 0.5, 0, 3, 0, 0.25, 9), (7, 0.5, 3, 5, 0, 0.25, 9)]


_functions: dict[int, tuple[Any, int | None, tuple[bool, ...]]] = {}  # by identity, since they have no hash


def _function_facts(function: Any) -> tuple[int | None, tuple[bool, ...]]:
    """Returns the address of a compiled function that threads are to call, and which of its arguments are floats."""
    facts = _functions.get(id(function))
    if facts is None:
        is_float = tuple([kind is FLOAT for kind in function.argtypes])
        facts = _functions[id(function)] = function, ctypes.cast(function, ctypes.c_void_p).value, is_float
    return facts[1:]


def _to_number(given: Any) -> int:
    """Returns an argument of a function that threads call as a number: itself, or the address of what it holds."""
    if isinstance(given, int):
        return given
    if isinstance(given, bytes):
        return ctypes.cast(ctypes.c_char_p(given), ctypes.c_void_p).value or 0
    return 0 if given is None else ctypes.addressof(given)


def _call_team(team: Callable[..., int], function: Any, before: Arguments, after: Arguments, cuts: list[int]) -> int:
    """Calls a compiled function for all ranges by torch's threads, with its arguments sorted into numbers and floats."""
    address, is_float = _function_facts(function)
    # Sort the arguments into numbers and floats, which threads.c puts back in order.
    arguments = list(zip((*before, 0, 0, *after), is_float, strict=True))
    given = [_to_number(x) for x, one in arguments if not one]
    floats = array("f", [x for x, one in arguments if one])
    # threads.c has room for a fixed number of arguments.
    assert len(given) <= _NUMBERS, "there is room for so many"
    assert len(floats) <= _FLOATS, "and for so many"
    floats.extend([0.0] * (_FLOATS - len(floats)))
    at, held = pack_numbers([*given, *[0] * (_NUMBERS - len(given)), *cuts])
    # Where the two ends of a range stand among the whole numbers.
    place = len(before) - sum(is_float[: len(before)])
    where = (at, floats.buffer_info()[0], place, len(cuts) - 1, at + 8 * _NUMBERS)
    problem = team(find_torch_threads(), address, *where)
    del held
    return problem


def run_in_parts(
    function: Any,
    before: Arguments,
    after: Arguments,
    end: int,
    threads: int,
    multiple: int = 1,
    short: str | None = None,
    begin: int = 0,
) -> None:
    """Calls `function(*before, first, last, *after)` by several threads, for ranges that cover [begin, end).

    They are cut at multiples of `multiple` from begin. The first range is the calling thread's, whose clock the choice
    of formulas reads. `short`: of what there may be too little memory, where the function returns a number that says
    so.
    """
    # An empty range needs no call.
    if begin >= end:
        return
    # Cut the range, and run it here, by torch's threads, or by a pool.
    cuts = [begin, end] if threads == 1 else _cut_range(begin, end, threads, multiple)
    if len(cuts) == 2:
        problem = function(*before, begin, end, *after)
    elif (team := _load_team()) is not None:
        problem = _call_team(team, function, before, after, cuts)
    else:
        problem = _run_by_pool(lambda first, last: function(*before, first, last, *after), cuts)
    # A kernel that could not allocate its workspace says so by its return value.
    if short is not None:
        raise_if_short(problem, short)


def _cut_range(begin: int, end: int, threads: int, multiple: int) -> list[int]:
    """Returns where the range is cut: as many parts as threads, at multiples."""
    cuts = {begin + round((end - begin) * k / threads / multiple) * multiple for k in range(threads)}
    return [*sorted([cut for cut in cuts if cut < end]), end]


def _run_by_pool(run: Callable[[int, int], Any], cuts: list[int]) -> int:
    """Runs a function over ranges by a pool of Python's threads, the first range in this thread, and returns the first
    problem.
    """
    first, *ranges = pairwise(cuts)
    others = [_thread_pool(os.getpid(), len(ranges)).submit(run, *cut) for cut in ranges]
    try:
        problems = [run(*first)]
    finally:  # whoever catches an error may free what the others still write to
        wait(others)
    problems += [other.result() for other in others]
    return next((problem for problem in problems if problem), 0)
