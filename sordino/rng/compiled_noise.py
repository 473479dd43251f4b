"""Compiled noise: the kernel is used only after it gave the bits of the slow path.

It adds nothing but speed: normals.py makes the same values, bit for bit. It is left alone when the library is missing or
older than its source, when the environment has SORDINO_KERNELS=0, or when it does not pass the check.

    $ sordino --version
"""

from __future__ import annotations

from functools import cache

import numpy as np

from sordino.kernels import build
from sordino.kernels.abi import typed
from sordino.kernels.library import KernelUnavailable, opened
from sordino.kernels.noise_kernel import BEST, FUNCTIONS, LEVELS, NoiseKernel
from sordino.rng import normals
from sordino.rng.keystream import KeyStream


def kernel() -> NoiseKernel | None:
    """Returns the kernel that is used, or None."""
    return _found()[0]


def status() -> str:
    """Returns in words which code makes the noise, and why."""
    found, reason = _found()
    return f"compiled, {LEVELS[found.level]}" if found is not None else f"numpy: {reason}"


@cache
def _found() -> tuple[NoiseKernel | None, str]:
    """Opens the compiled library and tries it; returns the kernel, or None and the reason."""
    try:
        library = typed(opened(build.NOISE), FUNCTIONS)
    except KernelUnavailable as reason:
        return None, str(reason)
    made = NoiseKernel(library, int(library.sordino_level(BEST)))
    return (made, "") if agrees(made) else (None, "the library does not give the values it should")


def agrees(made: NoiseKernel, n: int = 4999) -> bool:
    """Returns whether the kernel's key stream is the cipher's and its values are those of the slow path."""

    def stream() -> KeyStream:
        return KeyStream(bytes(range(32)), 2**60 + 5)

    wanted = bytearray(16 * 35)
    stream().into(wanted)
    if made.block_values != normals.BLOCK or made.keystream(stream(), 0, 35).astype("<u4").tobytes() != bytes(wanted):
        return False
    got = np.zeros(n, dtype=np.float32)
    made.add_normal(stream(), 1.5, [got.ctypes.data, got.ctypes.data + 4 * 777], [777, n - 777])
    slow = np.concatenate([block.copy() for block in normals.blocks(stream(), n, 1.5)])
    return bool(np.array_equal(got, slow))
