"""Keyed digests of a dataset's records, by which ranks compare whether they have the same data.

Rows of tensors are digested as a whole up to 64 MiB; of more, 4,096 records that the key chooses. Other datasets run
code of their own for every record, so some records that the key chooses are read: 16 at first, then as many as the
first rank can read in half a second. What a subset of m records catches: if a share p of all records differs, it is
noticed with probability 1 − (1 − p)^m, which for m = 4,096 is 98 % at p = 0.1 %; a single record of N that differs,
with probability m/N.

A dataset whose records are random must draw from the global generators of torch, numpy or Python to be compared: they
are set before each record is read. One that draws from a generator of its own gives other records each time it is read,
here or elsewhere; that is noticed, and then nothing is compared but that it is so on all ranks.

Privacy: digests are keyed (BLAKE2b) under a key that only the ranks of the run have, and are sent to those ranks alone.
"""

from __future__ import annotations

import hashlib
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.distributed.claim_facts import ClaimFacts, digest_of_record
from sordino.lots.loading import Loader
from sordino.rng.global_generators import preserve_generators, seed_all

ALL_BYTES = 64 << 20
"""Rows of tensors up to so many bytes are digested as a whole."""
SOME_ROWS = 4096
FIRST_READS = 16
_READ_AGAIN = 3
SECONDS = 0.5
"""What the first rank spends on reading more records of a dataset that runs code of its own."""
_ROWS_AT_ONCE = 1024


def digest_rows(key: bytes, load: Loader, n: int) -> bytes:
    """Returns a keyed digest of the data in a dataset of tensors: of all its rows, or of some that the key chooses."""
    record_bytes = sum(column.nbytes for column in load(np.zeros(1, dtype=np.int64)))
    # Ranks must choose the same rows, so the choice follows from the key and from sizes alone.
    chosen = (
        np.arange(n)
        if n * record_bytes <= ALL_BYTES
        else choose_records(key, n, max(64, min(SOME_ROWS, ALL_BYTES // record_bytes)))
    )
    digest = hashlib.blake2b(key=key, digest_size=16)
    for start in range(0, len(chosen), _ROWS_AT_ONCE):
        digest.update(digest_of_record(key, load(chosen[start : start + _ROWS_AT_ONCE])))
    return digest.digest()


def digest_reads(key: bytes, load: Loader, indices: NDArray[np.int64]) -> list[bytes]:
    """Returns a keyed digest of each of these records of the data, read one by one under seeds that follow from the
    key.
    """
    unread_loader, digests = load.as_if_unread(), []
    # The user's generators are put back afterwards, or comparing would change what the run draws from them.
    with preserve_generators():
        for index in indices.tolist():
            # Records that draw from the global generators are the same on all ranks under one seed.
            seed_all(_keyed_number(key, b"seed", index) % 2**32)
            digests.append(digest_of_record(key, unread_loader.read_record(index)))
    return digests


def digest_first_reads(key: bytes, load: Loader, n: int) -> tuple[list[bytes] | None, float]:
    """Returns digests of the first records of the data that the key chooses, and the seconds that one read takes.

    The digests are None if the records change by themselves.

    Each record is read several times. A dataset that changes half of its records at random, by a generator of its own,
    would go unnoticed with a probability below 2⁻³².
    """
    chosen, started = choose_records(key, n, FIRST_READS), time.perf_counter()
    # Under the same seeds only a dataset with a generator of its own gives different records when it is read again.
    reads = [digest_reads(key, load, chosen) for _ in range(_READ_AGAIN)]
    seconds = (time.perf_counter() - started) / max(1, len(chosen) * _READ_AGAIN)
    return reads[0] if all(again == reads[0] for again in reads) else None, seconds


def choose_records(key: bytes, n: int, count: int) -> NDArray[np.int64]:
    """Returns which `count` of `n` records of the data are digested, in ascending order, chosen by the key; all of them
    if there are no more.
    """
    if count >= n:
        return np.arange(n)
    # Whoever does not have the key cannot tell which records will be compared.
    chooser = np.random.Generator(np.random.Philox(_keyed_number(key, b"which records", n)))
    return np.sort(chooser.choice(n, size=count, replace=False)).astype(np.int64)


def _keyed_number(key: bytes, what: bytes, index: int) -> int:
    made = hashlib.blake2b(what + b" " + str(index).encode(), key=key, digest_size=8)
    return int.from_bytes(made.digest(), "little")


def count_reads_in_time(seconds_each: float, n: int) -> int:
    """Returns how many records can be read in the time there is for it."""
    return int(min(n, SECONDS / max(seconds_each, 1e-7)))


def add_records(facts: ClaimFacts, key: bytes, load: Loader, n: int) -> float:
    """Adds a data digest, of all or some of a dataset's records, to the facts that ranks compare; returns the seconds
    that reading one took.

    Returns 0 where rows of tensors are compared, and where records change by themselves and cannot be.
    """
    if is_loaded_by_rows(load):
        facts.add("records of the dataset", digest_rows(key, load, n))
        return 0.0
    reads, seconds = digest_first_reads(key, load, n)
    facts.add("records of the dataset", "which change by themselves" if reads is None else b"".join(reads))
    return 0.0 if reads is None else seconds


def is_loaded_by_rows(load: Any) -> bool:
    """Returns whether batches are rows of tensors that no code of a user touches."""
    return isinstance(load, Loader) and load.is_by_indexing
