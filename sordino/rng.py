"""Randomness as an argument: a ChaCha20 key stream (RFC 8439, 2018), split by purpose, with its position in the checkpoint.

Every draw has its own number, and the number is the cipher's nonce: draw k is a pure function of (key, k). So a stream
is resumed by its counter, and two streams never overlap. Keys of children are derived by keyed BLAKE2b.

Normal variates by Box–Muller, r = √(−2 ln u), over cache-sized blocks. u has 31 random bits for float32 (63 for float64)
and its smallest value is half a step, so |z| ≤ 6.66 (9.42): the mass beyond, 3e-11 (5e-21) a value, is missing.

Privacy: without a seed the key is 32 bytes from the operating system. With one, whoever knows the seed knows the noise.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from cryptography.hazmat.primitives.ciphers import AEADEncryptionContext, Cipher, CipherContext, algorithms
from numpy.typing import NDArray
from torch import Tensor

BLOCK = 1 << 18
"""Values made at once: the block and its temporaries stay in the processor's cache."""

_KEY_BYTES = 32


class _Scratch:
    """Memory for one block of normal values, kept warm: fresh memory costs more than the values."""

    def __init__(self, dtype: torch.dtype) -> None:
        word, self.bits = (torch.int64, 63) if dtype == torch.float64 else (torch.int32, 31)
        raw = bytearray(BLOCK * (self.bits + 1) // 8)
        self.zeros, self.buffer = memoryview(bytes(len(raw))), memoryview(raw)
        self.words = torch.frombuffer(raw, dtype=word)
        self.out = torch.empty(BLOCK, dtype=dtype)
        self.radius, self.angle, self.cosine = torch.empty(3, BLOCK // 2, dtype=dtype).unbind()


_warm = threading.local()


def _scratch(dtype: torch.dtype) -> _Scratch:
    """The calling thread's own."""
    kept: dict[torch.dtype, _Scratch] = _warm.__dict__.setdefault("kept", {})
    if dtype not in kept:
        kept[dtype] = _Scratch(dtype)
    return kept[dtype]


class Rng:
    """A stream of random values."""

    def __init__(self, key: bytes, counter: int = 0) -> None:
        if len(key) != _KEY_BYTES:
            raise ValueError(f"key of {len(key)} bytes: needs {_KEY_BYTES}")
        self._key = key
        self.counter = counter

    @staticmethod
    def from_entropy() -> Rng:
        """A stream nobody can repeat."""
        return Rng(secrets.token_bytes(_KEY_BYTES))

    @staticmethod
    def from_seed(seed: int) -> Rng:
        """A stream for tests: the same seed gives the same values."""
        return Rng(hashlib.blake2b(f"sordino seed {int(seed)}".encode(), digest_size=_KEY_BYTES).digest())

    def child(self, *labels: str | int) -> Rng:
        """An independent stream for a purpose; the same labels give the same stream."""
        text = "/".join(map(str, labels)).encode()
        return Rng(hashlib.blake2b(text, key=self._key, digest_size=_KEY_BYTES).digest())

    def fill(self, buffer: bytearray) -> None:
        """Overwrite a buffer with key stream: one draw."""
        self._stream().update_into(bytes(len(buffer)), buffer)

    def _stream(self) -> AEADEncryptionContext | CipherContext:
        """The key stream of the next draw."""
        # The first four bytes of the nonce are the block counter, the other twelve the draw's number.
        nonce = bytes(4) + self.counter.to_bytes(12, "little")
        self.counter += 1
        return Cipher(algorithms.ChaCha20(self._key, nonce), mode=None).encryptor()

    def words(self, n: int) -> NDArray[np.uint64]:
        """N uniform 64-bit words."""
        buffer = bytearray(8 * n)
        if n:
            self.fill(buffer)
        return np.frombuffer(buffer, dtype=np.uint64)

    def uniform(self, n: int) -> NDArray[np.float64]:
        """N values strictly between 0 and 1, in steps of 2⁻⁵³, offset by half a step."""
        return ((self.words(n) >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53

    def integers(self, n: int, high: int) -> NDArray[np.int64]:
        """N whole numbers uniform on [0, high), without bias: words past the last full multiple of high are redrawn."""
        limit = np.uint64(2**64 - 1 - (2**64 % high))
        kept = np.empty(0, dtype=np.uint64)
        while len(kept) < n:
            words = self.words(n - len(kept))
            kept = np.concatenate([kept, words[words <= limit]])
        return (kept % np.uint64(high)).astype(np.int64)

    def permutation(self, n: int) -> NDArray[np.int64]:
        """A uniform order of n things: the order of 64-bit keys, whose ties have probability below n²·2⁻⁶⁵."""
        return np.argsort(self.words(n), kind="stable").astype(np.int64)

    def normal(self, n: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """n independent standard normal values on the CPU, float32 or float64: one draw."""
        blocks = [block.clone() for block in self.normal_blocks(n, 1.0, dtype)]
        return torch.cat(blocks) if blocks else torch.zeros(0, dtype=dtype)

    def normal_blocks(self, n: int, scale: float, dtype: torch.dtype = torch.float32) -> Iterator[Tensor]:
        """n independent N(0, scale²) values in consecutive blocks: one draw.

        The blocks share their memory: each is valid until the next, so that adding them up stays in cache.
        """
        scratch, stream = _scratch(dtype), self._stream()
        bits = scratch.bits
        for start in range(0, n, BLOCK):
            count = min(BLOCK, n - start)
            half = (count + 1) // 2
            length = 2 * half * scratch.words.element_size()
            stream.update_into(scratch.zeros[:length], scratch.buffer[:length])
            radius, angle, cosine = scratch.radius[:half], scratch.angle[:half], scratch.cosine[:half]
            # u ∈ (0, 1): the sign bit is dropped so that small values keep all their bits in the conversion.
            radius.copy_(scratch.words[:half].bitwise_and_(2**bits - 1)).add_(0.5).mul_(2.0**-bits)
            radius.log_().mul_(-2.0 * scale * scale).sqrt_()
            angle.copy_(scratch.words[half : 2 * half]).mul_(math.pi * 2.0**-bits)  # [-π, π)
            torch.mul(radius, torch.cos(angle, out=cosine), out=scratch.out[:half])
            torch.mul(radius, angle.sin_(), out=scratch.out[half : 2 * half])
            yield scratch.out[:count]

    def laplace(self, n: int) -> Tensor:
        """N independent standard Laplace values, float64: sign · −ln u."""
        u = torch.from_numpy(self.uniform(2 * n)).view(2, n) if n else torch.zeros(2, 0, dtype=torch.float64)
        return u[0].log().neg() * torch.where(u[1] < 0.5, -1.0, 1.0)

    def state_dict(self) -> dict[str, Any]:
        """The key and the position. Whoever reads it knows all past and future noise: it is as secret as the data."""
        return {"key": self._key.hex(), "counter": self.counter}

    @staticmethod
    def from_state_dict(state: Mapping[str, Any]) -> Rng:
        """The stream, where it was."""
        return Rng(bytes.fromhex(state["key"]), int(state["counter"]))
