"""ChaCha20 key stream of one draw, the cipher of noise that is made on a device.

The cipher is Bernstein's (2008) with twenty rounds, a block counter of 64 bits and a nonce of 64 bits, by the
`cryptography` package. Block i of draw k has the counter i and the nonce k. A GPU has no instructions for AES, and a cipher
by tables would be slow there; ChaCha20 is made of additions, exclusive ors and rotations (kernels/triton_noise.py).

Privacy: like AES-256-CTR it is a cipher that nobody can tell from random bits without its key of 256 bits. PyTorch's own
generators on devices (Philox) are not: their noise can be predicted from some of its values.
"""

from __future__ import annotations

import struct

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, CipherContext, algorithms
from numpy.typing import NDArray

BLOCK_BYTES = 64

_CARRY = 1 << 32
"""Blocks after which the counter's low word carries into its high word."""
_ZEROS = memoryview(bytes(1 << 20))


class ChaChaStream:
    """The ChaCha20 stream of a key and the number of a draw, with the methods of `KeyStream`."""

    def __init__(self, key: bytes, number: int) -> None:
        self._key, self._number = key, number
        self._cipher: CipherContext | None = None

    def fill(self, buffer: memoryview | bytearray) -> None:
        """Overwrites the buffer with the bytes that come next in the ChaCha20 key stream."""
        if self._cipher is None:
            self._cipher = self._encryptor_from(0)
        self._cipher.update_into(_ZEROS[: len(buffer)] if len(buffer) <= len(_ZEROS) else bytes(len(buffer)), buffer)

    def word_at(self, index: int) -> int:
        """Returns the 32-bit word number `index` of the key stream, wherever it is being read."""
        return int(self.words_at(index, 1)[0])

    def words_at(self, first: int, n: int) -> NDArray[np.uint32]:
        """Returns the 32-bit words first, first + 1, … of the ChaCha20 key stream, wherever it is being read."""
        block, skip = divmod(4 * first, BLOCK_BYTES)
        blocks = -(-(skip + 4 * n) // BLOCK_BYTES)
        # `cryptography` counts with 32 bits and refuses to go past them, so a carry begins a new encryptor.
        stream_bytes, last = b"", block + blocks
        while block < last:
            end = min(last, (block // _CARRY + 1) * _CARRY)
            stream_bytes += self._encryptor_from(block).update(bytes(BLOCK_BYTES * (end - block)))
            block = end
        return np.frombuffer(stream_bytes, dtype="<u4", count=n, offset=skip)

    def key_words(self) -> list[int]:
        """Returns the key's eight words and the two of the draw's number, low word first, for the kernel of a device."""
        return list(struct.unpack("<10I", self._key + struct.pack("<Q", self._number)))

    def _encryptor_from(self, block: int) -> CipherContext:
        """Returns the cipher at one of its blocks; its first 16 bytes of nonce are counter and nonce of the original."""
        return Cipher(algorithms.ChaCha20(self._key, struct.pack("<QQ", block, self._number)), None).encryptor()
