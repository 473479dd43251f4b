"""Digests of 64 bits that tell whether two ranks have the same values.

They cover numbers, text, tensors, and lists and dicts of them.

Tensors count by the sum of their words: cheap enough for every lot, and two models that were trained apart differ in it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sordino.distributed.row_shard import is_shard

_WORDS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def digest_of(*things: Any) -> int:
    """Returns a digest of 64 bits of these things, as a signed number, which ranks compare to see whether they agree.

    >>> digest_of("draw", 3, [1.5]) == digest_of("draw", 3, [1.5]), digest_of("draw", 3) == digest_of("draw", 4)
    (True, False)
    """
    hashed = hashlib.blake2b(_bytes_of(things), digest_size=8)
    return int.from_bytes(hashed.digest(), "little", signed=True)


def _bytes_of(thing: Any) -> bytes:
    """Returns the bytes of a thing for an agreement digest, by its content; of a shard by its shape alone, which all
    ranks have.
    """
    if isinstance(thing, Tensor) and is_shard(thing):
        return f"shard {tuple(thing.shape)};".encode()  # its numbers are this rank's own
    # Tensors are read as whole numbers, so that equal bits and nothing else give equal digests.
    if isinstance(thing, Tensor):
        return f"tensor {tuple(thing.shape)} {sum_of_words(thing)};".encode()
    if isinstance(thing, np.ndarray):
        return b"array " + hashlib.blake2b(np.ascontiguousarray(thing).tobytes(), digest_size=16).digest()
    # Containers are wrapped in brackets, so that different nestings have different bytes.
    if isinstance(thing, Mapping):
        return b"{" + b"".join(_bytes_of(key) + _bytes_of(value) for key, value in thing.items()) + b"}"
    if isinstance(thing, list | tuple):
        return b"[" + b"".join(map(_bytes_of, thing)) + b"]"
    return f"{type(thing).__name__} {thing!r};".encode()


def sum_of_words(tensor: Tensor) -> int:
    """Returns the sum of a tensor's words, as whole numbers."""
    return sums_of_words([tensor])[0]


def sums_of_words(tensors: Iterable[Tensor]) -> list[int]:
    """Returns the sum of the words of each tensor, as a digest by which ranks compare parameters; a device is waited
    for once.
    """
    # The bytes are read as whole numbers, whose sum wraps around in the same way in any order.
    flat = [tensor.detach().contiguous() for tensor in tensors]
    sums = [t.view(-1).view(_WORDS[t.element_size()]).sum(dtype=torch.int64) for t in flat]
    if len({t.device for t in sums}) > 1:
        sums = [t.cpu() for t in sums]
    totals: list[int] = torch.stack(sums).tolist() if sums else []
    return totals


def sum_of_marks(seed: int, numbers: Iterable[int]) -> int:
    """Returns a digest of a set of numbers by which ranks agree: the sum of one random-looking 64-bit number for each,
    as a signed number.

    The numbers are those of splitmix64 (Steele et al. 2014).

    Numbers that are missing, or there twice, change it.

    >>> in_order = sum_of_marks(7, [0, 1, 2])
    >>> sum_of_marks(7, [2, 0, 1]) == in_order, sum_of_marks(7, [0, 1, 1]) == in_order
    (True, False)
    """
    z = np.fromiter(numbers, dtype=np.uint64) + np.uint64(1)
    z = z * _GOLDEN + np.uint64(seed % 2**64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return wrap_to_64_bits(int((z ^ (z >> np.uint64(31))).sum(dtype=np.uint64)))


def wrap_to_64_bits(value: int) -> int:
    """Returns a whole number as 64 bits hold it, signed."""
    return (value + 2**63) % 2**64 - 2**63
