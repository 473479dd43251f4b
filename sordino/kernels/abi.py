"""What the compiled kernels of convolutions share: the shape a call is given, its types, and what it may answer.

Every function takes (level, shape, first, last, pointers…), works on a range of samples or panels, and returns 0.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from functools import lru_cache

from torch import Tensor

from sordino.gradients.formulas.geometry import Geometry

BEST = 1
"""The highest level of a processor's abilities that the kernels know."""
NEAR = 1e-5
"""Relative, of a small layer by a kernel that is trusted."""
Shape = ctypes.Array[ctypes.c_int64]


def typed(library: ctypes.CDLL, **pointers: int) -> ctypes.CDLL:
    """The library with the types of its functions, by name: how many pointers each takes after the range."""
    size, pointer = ctypes.c_int64, ctypes.c_void_p
    for name, count in pointers.items():
        function = getattr(library, name)
        function.argtypes = [ctypes.c_int, pointer, size, size, *[pointer] * count]
        function.restype = ctypes.c_int
    return library


def check(problem: int) -> None:
    """What a kernel returned."""
    if problem:
        raise MemoryError("there is no memory for one sample of a convolution")


def shape_of(a: Tensor, y: Tensor, geometry: Geometry, weight: Sequence[int] = (0, 0, 0, 0)) -> Shape:
    """The kernel's shape_t: input, output, options, and the steps of the weight where it is read."""
    return _laid_out(a.shape[1:], a.stride(), y.shape[1:], y.stride(), tuple(weight), geometry)


@lru_cache(maxsize=4096)
def _laid_out(
    a: tuple[int, ...],
    a_step: tuple[int, ...],
    y: tuple[int, ...],
    y_step: tuple[int, ...],
    w_step: tuple[int, ...],
    geometry: Geometry,
) -> Shape:
    """One dimension is a row of an image one pixel high."""
    pairs = (geometry.kernel, geometry.stride, geometry.padding, geometry.dilation)
    if len(a) == 2:
        a, y = (a[0], 1, a[1]), (y[0], 1, y[1])
        a_step, y_step = (*a_step[:2], 0, a_step[2]), (*y_step[:2], 0, y_step[2])
        neutral = (1, 1, 0, 1)
        pairs = tuple((one, *pair) for one, pair in zip(neutral, pairs, strict=True))  # type: ignore[assignment]
    numbers = (*a, *y, *(n for pair in pairs for n in pair), geometry.groups, *a_step, *y_step, *w_step)
    return (ctypes.c_int64 * len(numbers))(*numbers)
