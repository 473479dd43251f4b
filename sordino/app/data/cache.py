"""The cache of decoded data sets: one folder each, complete or absent, opened by memory mapping."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino.app.data.data_catalogue import DataSetEntry
from sordino.app.data.formats import PARTS, Arrays

FOLDER = "SORDINO_CACHE"


def cache_folder() -> Path:
    """Returns the folder of the data cache: $SORDINO_CACHE, or the folder sordino in the user's cache folder."""
    given = os.environ.get(FOLDER)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return Path(given) if given else base / "sordino"


def array_digest(array: NDArray[np.uint8]) -> str:
    """Returns the SHA-256 of an array's shape and bytes, by which the cache recognises it."""
    text = hashlib.sha256(str(array.shape).encode())
    text.update(np.ascontiguousarray(array).data)
    return text.hexdigest()


def verify(entry: DataSetEntry, arrays: Arrays) -> None:
    """Raises ValueError if arrays, for the cache or from it, are not those of the data set, byte for byte."""
    for part in PARTS:
        if array_digest(arrays[part]) != entry.sha256[part]:
            raise ValueError(
                f"{entry.name}: {part} is not what it should be (wrong hash); the source is damaged or another"
            )


def find_arrays(entry: DataSetEntry) -> Arrays | None:
    """Returns the arrays of a data set in the cache as copy-on-write memory maps, or None if they are not there."""
    folder = cache_folder() / entry.name
    if not folder.is_dir():
        return None
    try:
        return {part: np.load(folder / f"{part}.npy", mmap_mode="c") for part in PARTS}
    except (OSError, ValueError) as error:
        raise ValueError(f"{entry.name}: the cached files in {folder} are damaged ({error})") from error


def store(entry: DataSetEntry, arrays: Arrays) -> None:
    """Writes the arrays of a data set beside the cache and moves them in at once, so that half a data set is never
    seen.
    """
    with workspace() as folder:
        complete_folder = folder / "whole"
        complete_folder.mkdir()
        for part, array in arrays.items():
            np.save(complete_folder / f"{part}.npy", array)
        # An older version goes first, since `os.replace` does not replace a folder that has files in it.
        target = cache_folder() / entry.name
        if target.exists():
            shutil.rmtree(target)
        os.replace(complete_folder, target)


@contextmanager
def workspace() -> Iterator[Path]:
    """Yields a temporary folder on the disk of the cache, which is removed afterwards."""
    cache_folder().mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=".part-", dir=cache_folder()))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
