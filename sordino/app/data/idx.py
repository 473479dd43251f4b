"""Reads the IDX format of MNIST and Fashion-MNIST, plain or gzipped.

A file has a magic number, big-endian sizes, and bytes.
"""

from __future__ import annotations

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_UNSIGNED_BYTE = 8


def read_idx(path: Path) -> NDArray[np.uint8]:
    """Returns the array in a file of the IDX format; every length is checked, so that a truncated file is an error."""
    content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    # An IDX file begins with two zeros, the type of its numbers and the number of its dimensions.
    if len(content) < 4 or content[0] or content[1] or content[2] != _UNSIGNED_BYTE:
        raise ValueError(f"{path.name}: not an IDX file of bytes")
    # A length for each dimension follows, in four bytes, the most significant first.
    dims = content[3]
    shape = tuple(int.from_bytes(content[4 + 4 * i : 8 + 4 * i], "big") for i in range(dims))
    data = np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * dims)
    if data.size != np.prod(shape):
        raise ValueError(f"{path.name}: {data.size} bytes of data for shape {shape}; the file is cut short or damaged")
    return data.reshape(shape)
