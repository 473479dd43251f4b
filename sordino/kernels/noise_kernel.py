"""Binding of the compiled noise: AES key stream, Box–Muller, addition and division in one pass.

It takes addresses and a stream, and knows nothing of what the values are for (noise.c). Whether it is used at all is
decided in rng/keystream.py, which compares it bit for bit with the slow path.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sordino.kernels.abi import FLOAT, INT, POINTER, SIZE, pack_numbers, run_in_parts

LEVELS = ("key stream of OpenSSL", "AES and AVX2", "VAES")
BEST = len(LEVELS) - 1
FUNCTIONS = {
    "sordino_keystream": (None, INT, ctypes.c_char_p, SIZE, SIZE, POINTER),
    "sordino_add_normal": (
        None, INT, ctypes.c_char_p, FLOAT, FLOAT, SIZE, SIZE, POINTER, POINTER, SIZE, POINTER, SIZE,
    ),
}  # fmt: skip

_FED = 0  # the level at which the caller makes the key stream
SPLIT = 1 << 16
"""Values; fewer are not worth a second thread."""
_PAIRS = 1 << 12  # threads begin at multiples of this many pairs


class Stream(Protocol):
    """The key stream of one draw."""

    def key_and_number(self) -> bytes:
        """Returns key and number of the draw."""
        ...

    def fill(self, buffer: memoryview | bytearray) -> None:
        """Overwrites the buffer with the bytes that come next."""
        ...


@dataclass(frozen=True)
class KeyStreamKernel:
    """A compiled library that makes noise of AES key stream, called at one level of the processor's abilities."""

    library: ctypes.CDLL
    level: int

    @property
    def makes_key_stream(self) -> bool:
        """Whether it makes the key stream itself, and fast; if not, OpenSSL does."""
        return self.level != _FED

    @cached_property
    def block_values(self) -> int:
        """Values made of one stretch of key stream: part of the definition of the noise."""
        return SIZE.in_dll(self.library, "sordino_block_values").value


class NoiseKernel(KeyStreamKernel):
    """Calls the functions of noise.c, which add independent noise."""

    def read_block(self, stream: Stream, number: int) -> bytes:
        """Returns one block of the AES key stream that the noise kernel makes noise of."""
        out = ctypes.create_string_buffer(16)
        self.library.sordino_keystream(self.level, stream.key_and_number(), number, 1, out)
        return out.raw

    def read_key_stream(self, stream: Stream, first: int, blocks: int) -> NDArray[np.uint32]:
        """Returns blocks first, first + 1, … of the noise kernel's AES key stream: four words each."""
        out = bytearray(16 * blocks)
        held = (ctypes.c_char * len(out)).from_buffer(out)
        self.library.sordino_keystream(self.level, stream.key_and_number(), first, blocks, held)
        return np.frombuffer(out, dtype=np.uint32)

    def add_normal(
        self,
        stream: Stream,
        scale: float,
        addresses: Sequence[int],
        sizes: Sequence[int],
        threads: int = 1,
        factor: float = 1.0,
    ) -> None:
        """Adds noise N(0, scale²) by the noise kernel to float32 arrays laid end to end, none of them empty, and
        multiplies the sums by a factor.
        """
        # The kernel sees one long array, whose pieces end where `ends` says.
        # Addresses and ends are packed into one block of numbers that lives until the call returns.
        ends, count = list(accumulate(sizes)), len(sizes)
        tensors, held = pack_numbers((*addresses, *ends))
        state, n, bounds = stream.key_and_number(), ends[-1], tensors + 8 * count

        def add_part(begin: int, end: int, words: int | None = None, first: int = 0) -> None:
            """Adds the noise kernel's values of some pairs, made of `words` where the caller makes the key stream."""
            self.library.sordino_add_normal(
                self.level, state, scale, factor, begin, end, tensors, bounds, count, words, first
            )

        # Threads make their own part of the key stream, so the noise does not depend on their number.
        if not self.makes_key_stream:
            self._add_from_stream(stream, n, add_part)
        else:
            of, to = (self.level, state, scale, factor), (tensors, bounds, count, None, 0)
            pairs, several = _count_pairs(n, self.block_values), 1 if n < SPLIT else threads
            run_in_parts(self.library.sordino_add_normal, of, to, pairs, several, _PAIRS)
        del held

    def normals_at(
        self, stream: Stream, scale: float, total: int, start: int, count: int, threads: int = 1
    ) -> NDArray[np.float32]:
        """Returns values start, start + 1, … of the noise of `total` values that the kernel's `add_normal` adds, making
        few others.

        It works only where the kernel makes the key stream itself. Whole blocks are made where they go; of a block that
        begins before the values or ends after them, the pairs behind those in it.
        """
        # Values are made in blocks whose halves belong together, so stretches are cut along blocks.
        block, end = self.block_values, start + count
        out = np.zeros(count, dtype=np.float32)
        # Whole blocks.
        first, last = -(-start // block) * block, end if end == total else end // block * block
        if first < last:
            self._add_pairs(stream, scale, total, (first // 2, _count_pairs(last, block)), out, start, threads)
        # What is left of the first and the last block.
        for begin, to in ((start, min(first, end)), (max(first, last), end)):
            if begin < to:
                base = begin - begin % block
                made = np.zeros(min(block, total - base), dtype=np.float32)
                least, most = _pairs_behind((len(made) + 1) // 2, begin - base, to - base)
                self._add_pairs(stream, scale, total, (base // 2 + least, base // 2 + most), made, base, 1)
                out[begin - start : to - start] = made[begin - base : to - base]
        return out

    def _add_pairs(
        self,
        stream: Stream,
        scale: float,
        total: int,
        pairs: tuple[int, int],
        out: NDArray[np.float32],
        first: int,
        threads: int,
    ) -> None:
        """Adds the noise kernel's values of some Box–Muller pairs to `out`, which holds the draw's values from number
        `first` on.

        The kernel counts from value 0; it is told where that would lie.
        """
        # Pretend that the array begins at value 0; only the pairs asked for are written.
        ends = (ctypes.c_uint64 * 1)(total)
        origin_address = (ctypes.c_uint64 * 1)(out.ctypes.data - out.itemsize * first)
        begin, end = pairs
        leading_arguments, trailing_arguments = (
            (self.level, stream.key_and_number(), scale, 1.0),
            (origin_address, ends, 1, None, 0),
        )
        several = 1 if end - begin < SPLIT else threads
        run_in_parts(
            self.library.sordino_add_normal, leading_arguments, trailing_arguments, end, several, _PAIRS, begin=begin
        )

    def _add_from_stream(self, stream: Stream, n: int, part: _Part) -> None:
        """Adds the noise kernel's values block after block, each made of the words that a key stream gives for the
        block.
        """
        # Without a cipher of its own, the kernel takes its words from the key stream, block by block.
        block = self.block_values
        pairs, buffer = _count_pairs(n, block), bytearray(4 * min(block, n + 1))
        words = np.frombuffer(buffer, dtype=np.uint32)
        for begin, first in zip(range(0, pairs, block // 2), range(0, n, block), strict=True):
            end = min(pairs, begin + block // 2)
            stream.fill(memoryview(buffer)[: 8 * (end - begin)])
            part(begin, end, words.ctypes.data, first)


class _Part(Protocol):
    def __call__(self, begin: int, end: int, words: int | None = None, first: int = 0) -> None: ...


def _pairs_behind(half: int, begin: int, end: int) -> tuple[int, int]:
    """Returns the Box–Muller pairs behind values begin … end of a block of the noise kernel.

    Its first `half` values are cosines and the others sines.
    """
    if end <= half:
        return begin, end
    return (begin - half, end - half) if begin >= half else (0, half)


def _count_pairs(n: int, block: int) -> int:
    """Returns the number of pairs that n values take, in blocks."""
    full_blocks, left_over = divmod(n, block)
    return full_blocks * (block // 2) + (left_over + 1) // 2
