"""Decides which records are held out for testing, each by a hash of itself.

Privacy: whether a record is held out depends on that record alone, so that one record more or less changes neither who the
others are nor on which side they stand. By place, or by a shuffle, it would move others too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

_BYTES = 8


def choose_held_out(records: Iterable[bytes], share: float) -> NDArray[np.bool_]:
    """Returns for each of the user's own records whether it is held out for testing; about this share of them are.

    >>> choose_held_out([b"one", b"two", b"three", b"one"], 0.5).tolist()
    [True, False, True, True]
    """
    hash_limit = int(share * 2 ** (8 * _BYTES))
    decisions = (
        int.from_bytes(hashlib.blake2b(one, digest_size=_BYTES).digest(), "big") < hash_limit for one in records
    )
    return np.fromiter(decisions, dtype=np.bool_)
