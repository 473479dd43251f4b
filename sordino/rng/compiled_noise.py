"""Compiled noise: the kernel is used only after it gave the bits of the slow path.

It adds nothing but speed: normals.py makes the same values, bit for bit. It is left alone when the library is missing or
older than its source, when the environment has SORDINO_KERNELS=0, or when it does not pass the check.

    $ sordino --version
"""

from __future__ import annotations

from functools import cache

import numpy as np

from sordino.kernels import build
from sordino.kernels.abi import declare_types
from sordino.kernels.library import KernelUnavailable, open_library
from sordino.kernels.noise_kernel import BEST, FUNCTIONS, LEVELS, NoiseKernel
from sordino.rng import normals
from sordino.rng.keystream import KeyStream


def noise_kernel() -> NoiseKernel | None:
    """Returns the kernel that is used, or None."""
    return _load_kernel()[0]


def describe_status() -> str:
    """Returns in words which code makes the noise, and why."""
    loaded, reason = _load_kernel()
    return f"compiled, {LEVELS[loaded.level]}" if loaded is not None else f"numpy: {reason}"


@cache
def _load_kernel() -> tuple[NoiseKernel | None, str]:
    """Opens the compiled library of the noise and tries it; returns the kernel, or None and the reason."""
    # The reason is kept, so that a user can be told why noise is slow.
    try:
        library = declare_types(open_library(build.NOISE), FUNCTIONS)
    except KernelUnavailable as reason:
        return None, str(reason)
    made = NoiseKernel(library, int(library.sordino_level(BEST)))
    return (made, "") if gives_same_values(made) else (None, "the library does not give the values it should")


def gives_same_values(candidate: NoiseKernel, n: int = 4999) -> bool:
    """Returns whether the compiled noise is right: its key stream is the cipher's and its values are those of the slow
    path.
    """

    def new_stream() -> KeyStream:
        return KeyStream(bytes(range(32)), 2**60 + 5)

    # First the cipher: its words must be those of the standard implementation.
    wanted = bytearray(16 * 35)
    new_stream().fill(wanted)
    if candidate.block_values != normals.BLOCK or candidate.read_key_stream(new_stream(), 0, 35).astype(
        "<u4"
    ).tobytes() != bytes(wanted):
        return False
    # Then the values, over several pieces and blocks, to the last bit: equal seeds must give equal runs on every
    # machine.
    got = np.zeros(n, dtype=np.float32)
    candidate.add_normal(new_stream(), 1.5, [got.ctypes.data, got.ctypes.data + 4 * 777], [777, n - 777])
    slow = np.concatenate([block.copy() for block in normals.normal_blocks(new_stream(), n, 1.5)])
    return bool(np.array_equal(got, slow))
