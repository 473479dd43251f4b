"""How compiled functions are called: argument types, levels, the check before use, shapes, threads, memory by address.

A kernel is a C file and a Python file of the same stem. Its functions take a level first, which names the instructions
they may use; nearly all then take a range (begin, end) of what threads share, and return 0, or another number where
memory is short. A level the processor does not have is lowered to one it has.

`run_in_parts` calls a function over a range by as many threads as torch uses. ctypes lets go of the interpreter during a
call. The threads are torch's own where its OpenMP runtime can be found (libgomp, on Linux). After a parallel operation
those wait for the next one by spinning for a while, and a second set of threads would have to share the cores with them.
The ranges are handed out by compiled code (threads.c): a thread that came through the interpreter would wait for its lock.
Elsewhere a pool of threads does the work.
"""

from __future__ import annotations

import ctypes
import os
import platform
from array import array
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from ctypes import Array, c_char, c_float
from functools import cache, lru_cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from sordino.kernels import build, processor
from sordino.kernels.build import Library
from sordino.kernels.library import KernelUnavailable, open_library

if TYPE_CHECKING:  # the noise, which needs no torch, is bound by this file too
    from torch import Tensor

LEVELS = ("portable", "AVX2", "AVX-512")
"""Instruction sets by level, of all kernels but the noise's, which has its own."""
BEST = len(LEVELS) - 1
_EIGHT_LANES = LEVELS.index("AVX2")
ROUNDING = 1e-5
"""How far a small case may differ from torch's, which adds in another order, as a share of the largest value."""

INT, FLOAT, DOUBLE, POINTER = ctypes.c_int, ctypes.c_float, ctypes.c_double, ctypes.c_void_p
SIZE, STEP = ctypes.c_uint64, ctypes.c_int64
Functions: TypeAlias = Mapping[str, Sequence[type | None]]
"""What a function returns, and after it the types of its arguments, by name."""
T = TypeVar("T")
if TYPE_CHECKING:
    Numbers: TypeAlias = array[int]

_NUMBERS, _FLOATS = 12, 2  # that a function may take
_MACHINES = ("x86_64", "amd64", "aarch64", "arm64")
_KINDS = {None: "v", INT: "i", POINTER: "p", ctypes.c_char_p: "p", SIZE: "n", STEP: "s", FLOAT: "f"}
"""Letters by which threads.c knows the types of a function's result and arguments."""
_KERNEL = ctypes.CFUNCTYPE(INT, INT, POINTER, SIZE, SIZE, SIZE, SIZE, POINTER, FLOAT, POINTER)
"""The type of a Gram kernel, with which the team is tried."""

Arguments = Sequence[Any]
"""Numbers, addresses (None for none), arrays and floats, as ctypes takes them."""


def declare_types(library: ctypes.CDLL, functions: Functions) -> ctypes.CDLL:
    """Returns a kernel library with the argument types of its functions, the ABI that bindings rely on: without them
    ctypes would cut addresses to 32 bits.
    """
    for name, (result, *arguments) in {"sordino_level": (INT, INT), **functions}.items():
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
    return library


def make_struct(name: str, **fields: Any) -> type[ctypes.Structure]:
    """Returns a C struct of these fields in this order."""
    return type(name, (ctypes.Structure,), {"_fields_": tuple(fields.items())})


def load_verified(
    library_source: Library,
    functions: Functions,
    kernel: Callable[[ctypes.CDLL, int], T],
    agrees: Callable[[T], bool],
    least: int = 0,
    *,
    halved: bool = False,
) -> T | None:
    """Returns a kernel bound by its ABI at this processor's level and checked before use, or None: not compiled, below
    `least`, or wrong on a small case.

    `halved`: sixteen lanes are faster even where the processor computes them in halves, by the stopwatch.
    """
    # Open the library and find the level; without either, torch does the work.
    try:
        library = declare_types(open_library(library_source), functions)
    except KernelUnavailable:
        return None
    level = int(library.sordino_level(BEST if halved or processor.computes_sixteen_at_once() else _EIGHT_LANES))
    if level < least:
        return None
    # A kernel is used only if it gives torch's values on a small case.
    loaded_kernel = kernel(library, level)
    import torch  # not for the noise, which is bound by this file too

    with torch.autocast("cpu", enabled=False), torch.no_grad():  # its tensors would be half as long as what is written
        return loaded_kernel if agrees(loaded_kernel) else None


def are_close(*pairs: tuple[Tensor, Tensor], rounding: float = ROUNDING) -> bool:
    """Returns whether every found value is the wanted one up to rounding of the largest; what is not a number never is."""
    return all(bool((found - wanted).abs().max() <= rounding * wanted.abs().max()) for found, wanted in pairs)


def raise_if_short(problem: int, what: str) -> None:
    """Raises where a kernel says that memory is short."""
    if problem:
        raise MemoryError(f"there is no memory for {what}")


def pack_numbers(given: Sequence[int]) -> tuple[int, Numbers]:
    """Returns the address of numbers as a kernel's ABI takes them, 64 bits each, and the array that must be held during
    the call.

    It costs a fifth of what ctypes' own arrays do.
    """
    held = array("q", given)
    return held.buffer_info()[0], held


def address_of(x: Tensor | None) -> int | None:
    """Returns where a tensor's first value lies; None, which is NULL, for none."""
    return None if x is None else x.data_ptr()


class KernelGeometry(Protocol):
    """The options of a convolution, one number per spatial dimension each."""

    @property
    def kernel(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def stride(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def padding(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def dilation(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def groups(self) -> int: ...  # noqa: D102


class KernelWindow(NamedTuple):
    """A `Geometry` of two dimensions, of numbers alone."""

    kernel: tuple[int, ...]
    stride: tuple[int, ...] = (1, 1)
    padding: tuple[int, ...] = (0, 0)
    dilation: tuple[int, ...] = (1, 1)
    groups: int = 1


Shape: TypeAlias = ctypes.Array[ctypes.c_int64]
"""shape_t of image.h."""


def make_shape(a: Tensor, y: Tensor, geometry: KernelGeometry, weight: Sequence[int] = (0, 0, 0, 0)) -> Shape:
    """Returns the shape struct of a convolution: input, output, options, and the steps of the weight where it is read."""
    options = (geometry.kernel, geometry.stride, geometry.padding, geometry.dilation)
    return _make_shape_struct(a.shape[1:], a.stride(), y.shape[1:], y.stride(), tuple(weight), options, geometry.groups)


@lru_cache(maxsize=4096)
def _make_shape_struct(
    a: tuple[int, ...],
    a_step: tuple[int, ...],
    y: tuple[int, ...],
    y_step: tuple[int, ...],
    w_step: tuple[int, ...],
    options: tuple[tuple[int, ...], ...],
    groups: int,
) -> Shape:
    """Returns the shape struct of a convolution or pooling, as the ABI of the kernels has it; one dimension is a row of
    an image one pixel high.
    """
    # One dimension is an image of height 1 whose kernel, stride and dilation are neutral in that direction.
    if len(a) == 2:
        a, y = (a[0], 1, a[1]), (y[0], 1, y[1])
        a_step, y_step = (*a_step[:2], 0, a_step[2]), (*y_step[:2], 0, y_step[2])
        neutral = (1, 1, 0, 1)
        options = tuple((one, *given) for one, given in zip(neutral, options, strict=True))
    # The order of the numbers is that of the struct in image.h.
    numbers = (*a, *y, *(n for given in options for n in given), groups, *a_step, *y_step, *w_step)
    return (ctypes.c_int64 * len(numbers))(*numbers)


@cache
def _thread_pool(process: int, threads: int) -> ThreadPoolExecutor:
    """Returns the pool of threads of a process."""
    # Cached by process: after a fork the child would have the pool of its parent, but none of its threads.
    return ThreadPoolExecutor(threads, thread_name_prefix="sordino")


@cache
def find_torch_threads() -> int | None:
    """Returns the address by which compiled functions call torch's own threads, a part of their ABI, if its OpenMP
    runtime is one whose entry is known.
    """
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
    """Returns the compiled functions by which the kernels' ABI hands out ranges to torch's threads, if they give each
    range once.
    """
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
    """Returns whether the team of threads in the kernels' ABI gives a function every range once, with its other
    arguments where they belong.
    """
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
    """Returns the ABI of a compiled function that threads are to call: its address, and the kinds of its arguments."""
    facts = _functions.get(id(function))
    if facts is None:
        # A type without a letter makes a signature that threads.c does not know.
        kinds = "".join(_KINDS.get(kind, "?") for kind in (function.restype, *function.argtypes))
        is_float = tuple([kind is FLOAT for kind in function.argtypes])
        address = ctypes.cast(function, ctypes.c_void_p).value
        facts = _functions[id(function)] = _FunctionFacts(function, address, is_float, kinds.encode())
    return facts


def _to_number(given: Any) -> int:
    """Returns an argument of a compiled function as the ABI passes it to threads, as a number: itself, or the address
    of what it holds.
    """
    if isinstance(given, int):
        return given
    if isinstance(given, bytes):
        return ctypes.cast(ctypes.c_char_p(given), ctypes.c_void_p).value or 0
    return 0 if given is None else ctypes.addressof(given)


def _call_team(team: _Team, function: Any, before: Arguments, after: Arguments, cuts: list[int]) -> int | None:
    """Calls a compiled function for all ranges by torch's threads, its arguments sorted into numbers and floats as the
    ABI has them; returns None, and calls nothing, where threads.c has no caller for functions of its kind.
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
    """Calls a compiled function by the kernels' ABI, `function(*before, first, last, *after)`, on several threads, for
    ranges of [begin, end).

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
    """Returns where the range that a kernel's ABI takes is cut: as many parts as threads, at multiples."""
    # A set, because in a short range several cuts round to one place, and no part may be empty.
    cuts = {begin + round((end - begin) * k / threads / multiple) * multiple for k in range(threads)}
    return [*sorted([cut for cut in cuts if cut < end]), end]


def _run_by_pool(run: Callable[[int, int], Any], cuts: list[int]) -> int:
    """Runs a kernel over ranges by a pool of Python's threads, where its ABI finds none of torch's, the first range in
    this thread; returns the first problem.
    """
    first, *ranges = pairwise(cuts)
    others = [_thread_pool(os.getpid(), len(ranges)).submit(run, *cut) for cut in ranges]
    try:
        problems = [run(*first)]
    finally:  # whoever catches an error may free what the others still write to
        wait(others)
    problems += [other.result() for other in others]
    return next((problem for problem in problems if problem), 0)


def read_bytes(address: int, many: int) -> Array[c_char]:
    """Returns these bytes, read by `.raw`; safe for as long as what lies there is alive."""
    return (c_char * many).from_address(address)


def read_two_floats(address: int, first: int, stride: int) -> list[float]:
    """Returns two values of float32: number `first` from there on, and the one `stride` after it."""
    at = address + 4 * first
    return [c_float.from_address(at).value, c_float.from_address(at + 4 * stride).value]
