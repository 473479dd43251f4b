"""AES-256 key stream of one draw in counter mode, read in order or word by word.

The cipher is that of FIPS 197 (2001) in the counter mode of SP 800-38A (2001), by the `cryptography` package.

Block i of draw k is the encryption of (k, i), 64 bits each, most significant byte first. No two blocks of a key are the
same, where those of a random stream would be: one could tell them apart from 2⁶⁴ blocks on, 2⁶⁶ values.
"""

from __future__ import annotations

import struct
from typing import Protocol

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms, modes
from numpy.typing import NDArray

KEY_BYTES = 32
BLOCK_BYTES = 16

_ZEROS = memoryview(bytes(1 << 20))


class WordStream(Protocol):
    """A key stream of 32-bit words, of whatever cipher, as normal values are made of it."""

    def fill(self, buffer: memoryview | bytearray) -> None:
        """Overwrites the buffer with the bytes that come next."""
        ...

    def word_at(self, index: int) -> int:
        """Returns the word number `index`."""
        ...

    def words_at(self, first: int, n: int) -> NDArray[np.uint32]:
        """Returns the words first, first + 1, …"""
        ...


class KeyStream:
    """The stream of a key and the number of a draw."""

    def __init__(self, key: bytes, number: int) -> None:
        self._key, self._number = key, number.to_bytes(8, "big")
        self._cipher: CipherContext | None = None

    def fill(self, buffer: memoryview | bytearray) -> None:
        """Overwrites the buffer with the bytes that come next in the key stream."""
        if self._cipher is None:
            self._cipher = self._encryptor_from(0)
        self._cipher.update_into(_ZEROS[: len(buffer)] if len(buffer) <= len(_ZEROS) else bytes(len(buffer)), buffer)

    def word_at(self, index: int) -> int:
        """Returns the 32-bit word number `index` of the key stream, wherever it is being read."""
        block, at = divmod(4 * index, BLOCK_BYTES)
        value: int = struct.unpack_from("<I", self._encryptor_from(block).update(bytes(BLOCK_BYTES)), at)[0]
        return value

    def words_at(self, first: int, n: int) -> NDArray[np.uint32]:
        """Returns the 32-bit words first, first + 1, … of the key stream, wherever it is being read."""
        block, skip = divmod(4 * first, BLOCK_BYTES)
        stream_bytes = self._encryptor_from(block).update(bytes(BLOCK_BYTES * -(-(skip + 4 * n) // BLOCK_BYTES)))
        return np.frombuffer(stream_bytes, dtype="<u4", count=n, offset=skip)

    def key_and_number(self) -> bytes:
        """Returns key and number, for the compiled kernel."""
        return self._key + self._number

    def _encryptor_from(self, block: int) -> CipherContext:
        counter = self._number + block.to_bytes(8, "big")
        return Cipher(algorithms.AES(self._key), modes.CTR(counter)).encryptor()
