"""AES-256 key stream of one draw in counter mode, and the compiled kernel that makes noise of it.

The cipher is that of FIPS 197 (2001) in the counter mode of SP 800-38A (2001), by the `cryptography` package.

Block i of draw k is the encryption of (k, i), 64 bits each, most significant byte first. No two blocks of a key are the
same, where those of a random stream would be: one could tell them apart from 2⁶⁴ blocks on, 2⁶⁶ values.

The compiled kernel adds nothing but speed: normals.py makes the same values, bit for bit. It is used only after it gave
these bits, and left alone when the library is missing or older than its source, when the environment has
SORDINO_KERNELS=0, or when it does not pass the check. `sordino --version` says which of the two makes the noise.
"""

from __future__ import annotations

import struct
from functools import cache

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

from sordino.kernels import build
from sordino.kernels.abi import declare_types
from sordino.kernels.library import KernelUnavailable, open_library
from sordino.kernels.noise_kernel import BEST, FUNCTIONS, LEVELS, NoiseKernel
from sordino.rng import normals

KEY_BYTES = 32
BLOCK_BYTES = 16

_ZEROS = memoryview(bytes(1 << 20))


class KeyStream:
    """The stream of a key and the number of a draw."""

    def __init__(self, key: bytes, number: int) -> None:
        self._key, self._number = key, number.to_bytes(8, "big")
        self._cipher: CipherContext | None = None

    def fill(self, buffer: memoryview | bytearray) -> None:
        """Overwrites the buffer with the bytes that come next in the AES key stream."""
        if self._cipher is None:
            self._cipher = self._encryptor_from(0)
        self._cipher.update_into(_ZEROS[: len(buffer)] if len(buffer) <= len(_ZEROS) else bytes(len(buffer)), buffer)

    def word_at(self, index: int) -> int:
        """Returns the 32-bit word number `index` of the AES key stream, wherever it is being read."""
        block, at = divmod(4 * index, BLOCK_BYTES)
        value: int = struct.unpack_from("<I", self._encryptor_from(block).update(bytes(BLOCK_BYTES)), at)[0]
        return value

    def words_at(self, first: int, n: int) -> NDArray[np.uint32]:
        """Returns the 32-bit words first, first + 1, … of the AES key stream, wherever it is being read."""
        block, skip = divmod(4 * first, BLOCK_BYTES)
        stream_bytes = self._encryptor_from(block).update(bytes(BLOCK_BYTES * -(-(skip + 4 * n) // BLOCK_BYTES)))
        return np.frombuffer(stream_bytes, dtype="<u4", count=n, offset=skip)

    def key_and_number(self) -> bytes:
        """Returns key and number, for the compiled kernel."""
        return self._key + self._number

    def _encryptor_from(self, block: int) -> CipherContext:
        counter = self._number + block.to_bytes(8, "big")
        return Cipher(algorithms.AES(self._key), modes.CTR(counter)).encryptor()


def noise_kernel() -> NoiseKernel | None:
    """Returns the kernel that is used, or None."""
    return _load_kernel()[0]


def describe_status() -> str:
    """Returns in words which code makes the noise, and why."""
    loaded, reason = _load_kernel()
    return f"compiled, {LEVELS[loaded.level]}" if loaded is not None else f"numpy: {reason}"


@cache
def _load_kernel() -> tuple[NoiseKernel | None, str]:
    """Opens the compiled library that makes the AES key stream and noise of it, and tries it; returns the kernel, or
    None and the reason.
    """
    # The reason is kept, so that a user can be told why noise is slow.
    try:
        library = declare_types(open_library(build.NOISE), FUNCTIONS)
    except KernelUnavailable as reason:
        return None, str(reason)
    made = NoiseKernel(library, int(library.sordino_level(BEST)))
    return (made, "") if gives_same_values(made) else (None, "the library does not give the values it should")


def gives_same_values(candidate: NoiseKernel, n: int = 4999) -> bool:
    """Returns whether the compiled key stream is right: it is that of the AES cipher, and the noise made of it has the
    values of the slow path.
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
