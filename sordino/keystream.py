"""The ChaCha20 key stream (RFC 8439, 2018) of one draw, by the `cryptography` package: read in order, or word by word.

The sixteen words a block is made of are four constants, the key, the block's number, and the number of the draw.
"""

from __future__ import annotations

import struct

import numpy as np
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher, CipherContext, algorithms
from numpy.typing import NDArray

KEY_BYTES = 32
BLOCK_BYTES = 64

_CONSTANTS = b"expand 32-byte k"
_ZEROS = bytes(1 << 20)


class KeyStream:
    """The stream of a key and the number of a draw."""

    def __init__(self, key: bytes, number: int) -> None:
        self._key, self._number = key, number.to_bytes(12, "little")
        self._cipher: AEADEncryptionContext | CipherContext | None = None

    def into(self, buffer: memoryview | bytearray) -> None:
        """Overwrite the buffer with the bytes that come next."""
        if self._cipher is None:
            self._cipher = self._from(0)
        self._cipher.update_into(_ZEROS[: len(buffer)] if len(buffer) <= len(_ZEROS) else bytes(len(buffer)), buffer)

    def word(self, index: int) -> int:
        """32-bit word number `index` of the stream, wherever it is being read."""
        block, at = divmod(4 * index, BLOCK_BYTES)
        found: int = struct.unpack_from("<I", self._from(block).update(bytes(BLOCK_BYTES)), at)[0]
        return found

    def state(self) -> NDArray[np.uint32]:
        """The sixteen words of block 0, for the compiled kernel."""
        return np.frombuffer(_CONSTANTS + self._key + bytes(4) + self._number, dtype="<u4").astype(np.uint32)

    def _from(self, block: int) -> AEADEncryptionContext | CipherContext:
        # The first four bytes of the nonce are the block's number, the other twelve the draw's.
        nonce = block.to_bytes(4, "little") + self._number
        return Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor()
