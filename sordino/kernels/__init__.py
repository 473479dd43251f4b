"""The compiled kernel of the noise, if there is one: loaded by ctypes, and used only after it gave the slow path's values.

It adds nothing but speed: sordino/normals.py makes the same values, bit for bit. It is left alone when the library is
missing or older than its source, when the environment has SORDINO_KERNELS=0, or when it does not pass the check.

    $ sordino --version
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

from sordino.kernels import build
from sordino.kernels.library import Unavailable, opened
from sordino.kernels.threads import in_parts
from sordino.random import normals
from sordino.random.keystream import KeyStream

LEVELS = ("key stream of OpenSSL", "AES and AVX2", "VAES")
_BEST = len(LEVELS) - 1
_FED = 0  # the level at which the caller makes the key stream

_SPLIT = 1 << 16  # values; fewer are not worth a second thread
_PAIRS = 1 << 12  # threads begin at multiples of this many pairs


@dataclass(frozen=True)
class Kernel:
    """The library's functions at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int

    @property
    def ciphers(self) -> bool:
        """Whether it makes the key stream itself; if not, OpenSSL does."""
        return self.level != _FED

    def block(self, stream: KeyStream, number: int) -> bytes:
        """One block of a key stream."""
        out = ctypes.create_string_buffer(16)
        self.library.sordino_keystream(self.level, stream.state(), number, 1, out)
        return out.raw

    def keystream(self, stream: KeyStream, first: int, blocks: int) -> NDArray[np.uint32]:
        """Blocks first, first + 1, … of a key stream: four words each."""
        out = bytearray(16 * blocks)
        held = (ctypes.c_char * len(out)).from_buffer(out)
        self.library.sordino_keystream(self.level, stream.state(), first, blocks, held)
        return np.frombuffer(out, dtype=np.uint32)

    def add_normal(
        self,
        stream: KeyStream,
        scale: float,
        addresses: Sequence[int],
        sizes: Sequence[int],
        threads: int = 1,
        factor: float = 1.0,
    ) -> None:
        """Add N(0, scale²) to float32 arrays laid end to end, none of them empty, and multiply the sums by a factor."""
        ends, count = list(accumulate(sizes)), len(sizes)
        listed = (ctypes.c_uint64 * (2 * count))(*addresses, *ends)
        tensors = ctypes.addressof(listed)
        state, n, bounds = stream.state(), ends[-1], tensors + 8 * count
        pairs = _pairs(n)

        def part(begin: int, end: int, words: int | None = None, first: int = 0) -> None:
            self.library.sordino_add_normal(
                self.level, state, scale, factor, begin, end, tensors, bounds, count, words, first
            )

        if not self.ciphers:
            buffer = bytearray(4 * min(normals.BLOCK, n + 1))
            words = np.frombuffer(buffer, dtype=np.uint32)
            for begin, first in zip(range(0, pairs, normals.BLOCK // 2), range(0, n, normals.BLOCK), strict=True):
                end = min(pairs, begin + normals.BLOCK // 2)
                stream.into(memoryview(buffer)[: 8 * (end - begin)])
                part(begin, end, words.ctypes.data, first)
        elif threads == 1 or n < _SPLIT:
            part(0, pairs)
        else:
            in_parts(part, pairs, threads, _PAIRS)


def _pairs(n: int) -> int:
    whole, rest = divmod(n, normals.BLOCK)
    return whole * (normals.BLOCK // 2) + (rest + 1) // 2


@cache
def kernel() -> Kernel | None:
    """The kernel that is used, or None."""
    return _found()[0]


def status() -> str:
    """Which code makes the noise, and why."""
    found, reason = _found()
    return f"compiled, {LEVELS[found.level]}" if found is not None else f"numpy: {reason}"


@cache
def _found() -> tuple[Kernel | None, str]:
    try:
        library = typed(opened(build.NOISE))
    except Unavailable as reason:
        return None, str(reason)
    made = Kernel(library, int(library.sordino_level(_BEST)))
    return (made, "") if agrees(made) else (None, "the library does not give the values it should")


def typed(library: ctypes.CDLL) -> ctypes.CDLL:
    """The library with the types of its functions."""
    level, size, pointer = ctypes.c_int, ctypes.c_uint64, ctypes.c_void_p
    key, number = ctypes.c_char_p, ctypes.c_float
    library.sordino_keystream.argtypes = [level, key, size, size, pointer]
    library.sordino_add_normal.argtypes = [
        level, key, number, number, size, size, pointer, pointer, size, pointer, size
    ]  # fmt: skip
    library.sordino_keystream.restype = library.sordino_add_normal.restype = None
    return library


def agrees(made: Kernel, n: int = 4999) -> bool:
    """Whether the kernel's key stream is the cipher's and its values those of the slow path."""

    def stream() -> KeyStream:
        return KeyStream(bytes(range(32)), 2**60 + 5)

    wanted = bytearray(16 * 35)
    stream().into(wanted)
    if made.keystream(stream(), 0, 35).astype("<u4").tobytes() != bytes(wanted):
        return False
    got = np.zeros(n, dtype=np.float32)
    made.add_normal(stream(), 1.5, [got.ctypes.data, got.ctypes.data + 4 * 777], [777, n - 777])
    slow = np.concatenate([block.copy() for block in normals.blocks(stream(), n, 1.5)])
    return bool(np.array_equal(got, slow))
