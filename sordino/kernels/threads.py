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
from typing import Any, NamedTuple

from sordino.kernels import build
from sordino.kernels.abi import FLOAT, INT, POINTER, SIZE, STEP, pack_numbers, raise_if_short
from sordino.kernels.library import KernelUnavailable, open_library

_NUMBERS, _FLOATS = 12, 2  # that a function may take
_MACHINES = ("x86_64", "amd64", "aarch64", "arm64")
_KINDS = {None: "v", INT: "i", POINTER: "p", ctypes.c_char_p: "p", SIZE: "n", STEP: "s", FLOAT: "f"}
"""Letters by which threads.c knows the types of a function's result and arguments."""
_KERNEL = ctypes.CFUNCTYPE(INT, INT, POINTER, SIZE, SIZE, SIZE, SIZE, POINTER, FLOAT, POINTER)
"""The type of a Gram kernel, with which the team is tried."""

Arguments = Sequence[Any]
"""Numbers, addresses (None for none), arrays and floats, as ctypes takes them."""


@cache
def _thread_pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Returns the pool of threads of a process."""
    # Cached by process: after a fork the child would have the pool of its parent, but none of its threads.
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


class _Team(NamedTuple):
    """The compiled functions that hand out ranges to torch's threads."""

    run: Callable[..., int]
    """Runs a function of a given signature over ranges."""
    find_signature: Callable[[bytes], int]
    """Returns the number of a signature, or −1 where threads.c has no caller for it."""


@cache
def _load_team() -> _Team | None:
    """Returns the compiled functions that hand out ranges to the team of torch's threads, if they give each range once."""
    # Threads of our own beside torch's would compete with them for the same cores.
    if find_torch_threads() is None:
        return None
    try:
        library = open_library(build.THREADS)
    except KernelUnavailable:
        return None
    run, find = library.sordino_team, library.sordino_signature
    # Without these types ctypes would pass addresses as 32-bit integers.
    run.restype, run.argtypes = INT, (POINTER, POINTER, INT, POINTER, POINTER, SIZE, SIZE, POINTER)
    find.restype, find.argtypes = INT, (ctypes.c_char_p,)
    team = _Team(run, find)
    return team if _covers_every_range(team) else None


def _covers_every_range(team: _Team) -> bool:
    """Returns whether a team of threads gives a function every range once, with its other arguments where they belong."""
    seen: list[tuple[Any, ...]] = []

    # A Python function is called through the team, to see that every argument arrives where it belongs.
    def note_call(*given: Any) -> int:
        """Notes the arguments of a call."""
        seen.append(given)
        return 0

    problem = _call_team(team, _KERNEL(note_call), (7, 11, 1 << 40), (9, None, 0.25, 13), [0, 3, 5])
    wanted: list[tuple[Any, ...]] = [
        (7, 11, 1 << 40, first, last, 9, None, 0.25, 13) for first, last in ((0, 3), (3, 5))
    ]
    return problem == 0 and sorted(seen) == wanted


class _FunctionFacts(NamedTuple):
    """What is known of a compiled function that threads are to call."""

    function: Any
    """The function itself, held so that its identity is not given out again."""
    address: int | None
    is_float: tuple[bool, ...]
    """Which of its arguments are floats."""
    signature: bytes
    """The kinds of its result and arguments, as threads.c spells them."""


_functions: dict[int, _FunctionFacts] = {}  # by identity, since they have no hash


def _function_facts(function: Any) -> _FunctionFacts:
    """Returns the address of a compiled function that threads are to call, and the kinds of its arguments."""
    facts = _functions.get(id(function))
    if facts is None:
        # A type without a letter makes a signature that threads.c does not know.
        kinds = "".join(_KINDS.get(kind, "?") for kind in (function.restype, *function.argtypes))
        is_float = tuple([kind is FLOAT for kind in function.argtypes])
        address = ctypes.cast(function, ctypes.c_void_p).value
        facts = _functions[id(function)] = _FunctionFacts(function, address, is_float, kinds.encode())
    return facts


def _to_number(given: Any) -> int:
    """Returns an argument of a function that threads call as a number: itself, or the address of what it holds."""
    if isinstance(given, int):
        return given
    if isinstance(given, bytes):
        return ctypes.cast(ctypes.c_char_p(given), ctypes.c_void_p).value or 0
    return 0 if given is None else ctypes.addressof(given)


def _call_team(team: _Team, function: Any, before: Arguments, after: Arguments, cuts: list[int]) -> int | None:
    """Calls a compiled function for all ranges by torch's threads, with its arguments sorted into numbers and floats;
    returns None, and calls nothing, where threads.c has no caller for functions of its kind.
    """
    _, address, is_float, signature = _function_facts(function)
    number = team.find_signature(signature)
    if number < 0:
        return None
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
    problem = team.run(find_torch_threads(), address, number, *where)
    # The packed numbers must live until the call has returned.
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
    else:
        team = _load_team()
        problem = None if team is None else _call_team(team, function, before, after, cuts)
        if problem is None:
            problem = _run_by_pool(lambda first, last: function(*before, first, last, *after), cuts)
    # A kernel that could not allocate its workspace says so by its return value.
    if short is not None:
        raise_if_short(problem, short)


def _cut_range(begin: int, end: int, threads: int, multiple: int) -> list[int]:
    """Returns where the range is cut: as many parts as threads, at multiples."""
    # A set, because in a short range several cuts round to one place, and no part may be empty.
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
