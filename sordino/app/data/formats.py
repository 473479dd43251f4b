"""Decodes the raw files of a data set, in any of their published forms, into four arrays."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino.app.data.idx import read_idx

Arrays = dict[str, NDArray[np.uint8]]
"""train_images and test_images (N, C, H, W), train_labels and test_labels (N,)."""

PARTS = ("train_images", "train_labels", "test_images", "test_labels")

_IDX = dict(
    zip(
        PARTS,
        ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte"),
        strict=True,
    )
)
_CIFAR_PIXELS = 3 * 32 * 32


def decode_idx_files(folder: Path) -> Arrays:
    """Decodes a data set in the format of four IDX files, plain or gzipped."""
    # Images without a channel get one.
    arrays = {part: read_idx(_find_plain_or_gzipped(folder, name)) for part, name in _IDX.items()}
    return {part: array[:, None] if array.ndim == 3 else array for part, array in arrays.items()}


def decode_cifar_pngs(folder: Path) -> Arrays:
    """Decodes CIFAR-10 in the format of six PNGs of 10,000 rows, one image each, and two JSON lists of labels.

    The misspelt names of the lists are those of the package.
    """
    from PIL import Image

    def read_images(name: str) -> NDArray[np.uint8]:
        rows = np.asarray(Image.open(folder / name))  # (10000, 1024, 3)
        return np.ascontiguousarray(rows.reshape(-1, 32, 32, 3).transpose(0, 3, 1, 2))

    def read_labels(name: str) -> NDArray[np.uint8]:
        return np.array(json.loads((folder / name).read_text()), dtype=np.uint8)

    return {
        "train_images": np.concatenate([read_images(f"data_batch_{i}.png") for i in range(1, 6)]),
        "train_labels": read_labels("train_lables.json"),
        "test_images": read_images("test_batch.png"),
        "test_labels": read_labels("test_lables.json"),
    }


def decode_cifar_binaries(folder: Path) -> Arrays:
    """Decodes CIFAR-10 in its official binary format: 3073 bytes a record, the label first."""

    def read_records(*names: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
        """Returns the images and labels in files of CIFAR-10's binary format; raises if a file is cut short."""
        content = np.concatenate([np.frombuffer((folder / name).read_bytes(), dtype=np.uint8) for name in names])
        if content.size % (1 + _CIFAR_PIXELS):
            raise ValueError(f"{names[0]}: not a whole number of records; the file is cut short or damaged")
        table = content.reshape(-1, 1 + _CIFAR_PIXELS)
        return np.ascontiguousarray(table[:, 1:]).reshape(-1, 3, 32, 32), np.ascontiguousarray(table[:, 0])

    # Five files to train on, one to test on.
    train = read_records(*(f"data_batch_{i}.bin" for i in range(1, 6)))
    test = read_records("test_batch.bin")
    return dict(zip(PARTS, (*train, *test), strict=True))


def decode_cifar_files(folder: Path) -> Arrays:
    """Decodes CIFAR-10 in whichever of the two forms is there."""
    return decode_cifar_binaries(folder) if (folder / "test_batch.bin").exists() else decode_cifar_pngs(folder)


def _find_plain_or_gzipped(folder: Path, name: str) -> Path:
    """Returns the path of a data set's raw file to decode, in the plain or the gzipped format."""
    for path in (folder / name, folder / f"{name}.gz"):
        if path.exists():
            return path
    raise FileNotFoundError(f"{name} (or {name}.gz) is not in {folder}")
