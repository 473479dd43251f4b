"""Loads data sets by name, from the cache or from the first source that has them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TypeVar

import torch

from sordino.app.data import cache
from sordino.app.data.data_catalogue import DataSetEntry, find_entry
from sordino.app.data.download_sources import Folder, Source, Unavailable
from sordino.app.data.formats import Arrays
from sordino.app.data.images import Data, Images

T = TypeVar("T")
FOLDER = "SORDINO_DATA"
"""A folder of the user's with raw files, or with a folder of them for each data set."""


class NotFetched(RuntimeError):
    """Raised if no source could give a data set; the message has the reason of each."""


def fetch(name: str, say: Callable[[str], None] = lambda _: None) -> Data:
    """Fetches an image data set by name anew, checks its hashes and puts it into the cache."""
    catalogue_entry = find_entry(name)

    def keep_arrays(files: Path, workspace: Path) -> None:
        arrays = catalogue_entry.decode(files)
        cache.verify(catalogue_entry, arrays)
        cache.store(catalogue_entry, arrays)

    fetch_from_sources(name, catalogue_entry.sources, keep_arrays, say)
    return load(name)


def fetch_from_sources(
    name: str, public_sources: Iterable[Source], keep: Callable[[Path, Path], T], say: Callable[[str], None]
) -> T:
    """Obtains the raw files of a data set that is fetched by name from the first source whose files are right: the
    user's own folders, then the public sources.

    Args:
        name: of the data set or group of files, in messages and as a folder below the user's own.
        public_sources: where they can be had.
        keep: gets the folder with the files and a workspace, checks hashes and puts the files into the cache. It raises
            ValueError if they are not what they should be; then the next source is tried.
        say: is told which source is tried.

    Returns:
        What `keep` returned.

    Raises:
        NotFetched: with the reason of every source.

    """
    # The user's own copies spare the network. Every source is held to the same hashes, so it does not matter which answers.
    own_folder = os.environ.get(FOLDER)
    own_sources = [Folder(Path(own_folder) / name), Folder(Path(own_folder))] if own_folder else []
    reasons = []
    for source in (*own_sources, *public_sources):
        say(f"{name}: trying {source}")
        try:
            with cache.workspace() as workspace:
                return keep(source.obtain(workspace), workspace)
        except (Unavailable, OSError, ValueError, EOFError) as error:
            reasons.append(f"  {source}: {error}")
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


def _data_of_arrays(wanted: DataSetEntry, arrays: Arrays) -> Data:
    """Returns the training and test images of a data set that is loaded by name, from its four arrays."""

    def images_of_part(part: str) -> Images:
        labels = torch.from_numpy(arrays[f"{part}_labels"].astype("int64"))
        return Images(torch.from_numpy(arrays[f"{part}_images"]), labels)

    return Data(wanted.name, images_of_part("train"), images_of_part("test"), wanted.classes)
