"""Loads data sets by name, from the cache or from the first source that has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from sordino.app.data import cache
from sordino.app.data.data_catalogue import DataSetEntry, find_entry
from sordino.app.data.download_sources import Folder, Source, Unavailable
from sordino.app.data.formats import Arrays
from sordino.app.data.images import Data, Images

FOLDER = "SORDINO_DATA"
"""A folder of the user's with raw files, or with a folder of them for each data set."""


class NotFetched(RuntimeError):
    """Raised if no source could give a data set; the message has the reason of each."""


def fetch(name: str, say: Callable[[str], None] = lambda _: None) -> Data:
    """Fetches an image data set by name anew, checks its hashes and puts it into the cache."""
    catalogue_entry, reasons = find_entry(name), []
    # Every source is held to the same hashes, so it does not matter which one answers.
    for source in _sources_of(catalogue_entry):
        say(f"{name}: trying {source}")
        try:
            with cache.workspace() as folder:
                arrays = catalogue_entry.decode(source.obtain(folder))
                cache.verify(catalogue_entry, arrays)
                cache.store(catalogue_entry, arrays)
        except (Unavailable, OSError, ValueError, EOFError) as error:
            reasons.append(f"  {source}: {error}")
            continue
        return load(name)
    raise NotFetched(
        f"{name} could not be had from any source:\n"
        + "\n".join(reasons)
        + f"\nPut its files into a folder and set {FOLDER} to it."
    )


def load(name: str) -> Data:
    """Returns an image data set by name, from the cache if it is there.

    >>> from sordino.app.data import load, digits
    >>> digits(train=100, test=10).train.images.shape
    torch.Size([100, 1, 28, 28])
    """
    arrays = cache.find_arrays(find_entry(name))
    return fetch(name) if arrays is None else _data_of_arrays(find_entry(name), arrays)


def check(name: str) -> bool:
    """Returns whether the cached arrays of a data set, given by name, are the right ones byte for byte; False if
    nothing is cached.
    """
    arrays = cache.find_arrays(find_entry(name))
    if arrays is None:
        return False
    cache.verify(find_entry(name), arrays)
    return True


def _sources_of(wanted: DataSetEntry) -> Iterator[Source]:
    """Yields the sources of an image data set that is loaded by name: the user's own folders first, then the public
    ones.
    """
    given = os.environ.get(FOLDER)
    if given:
        yield Folder(Path(given) / wanted.name)
        yield Folder(Path(given))
    yield from wanted.sources


def _data_of_arrays(wanted: DataSetEntry, arrays: Arrays) -> Data:
    """Returns the training and test images of a data set that is loaded by name, from its four arrays."""

    def images_of_part(part: str) -> Images:
        labels = torch.from_numpy(arrays[f"{part}_labels"].astype("int64"))
        return Images(torch.from_numpy(arrays[f"{part}_images"]), labels)

    return Data(wanted.name, images_of_part("train"), images_of_part("test"), wanted.classes)
