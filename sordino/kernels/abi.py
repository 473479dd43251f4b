"""Shared parts of all kernel bindings: argument types, levels, the check before use, shapes.

A kernel is a C file and a Python file of the same stem. Its functions take a level first, which names the instructions
they may use; nearly all then take a range (begin, end) of what threads share, and return 0, or another number where
memory is short. A level the processor does not have is lowered to one it has.
"""

from __future__ import annotations

import ctypes
from array import array
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, TypeAlias, TypeVar

from sordino.kernels import processor
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
    """Returns a kernel binding at this processor's level after the check before use, or None: not compiled, below
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
