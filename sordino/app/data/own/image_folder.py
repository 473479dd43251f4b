"""Reads a folder of images that has a folder for each class.

All images have one size; `size` makes them so, each by itself. Their colours are those of the first, by name, unless
`channels` says 1 or 3: the others are converted.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sordino.app.data.own.bad_file import BadFile

ENDINGS = (".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".ppm", ".pgm")
_MODES = {1: "L", 3: "RGB"}
_GREY = ("1", "L", "LA", "I", "I;16", "F")


@dataclass(frozen=True, eq=False)
class ImageFolder:
    """Images as bytes (N, C, H, W), the class of each by name, and the file of each."""

    path: Path
    images: NDArray[np.uint8]
    classes: list[str]
    files: list[str]


def read_image_folder(path: Path, size: tuple[int, int] | None = None, channels: int | None = None) -> ImageFolder:
    """Returns all images of a user's image folder with classes and files, in the order of their names."""
    # In the order of names, which does not depend on the file system.
    folders = sorted(one for one in path.iterdir() if one.is_dir() and not one.name.startswith("."))
    labelled_files = [
        (one, folder.name)
        for folder in folders
        for one in sorted(folder.iterdir())
        if one.is_file() and not one.name.startswith(".")
    ]
    if not labelled_files:
        raise BadFile(path, "is a folder without images", "need a folder for each class, with its images in it")
    images: list[NDArray[np.uint8]] = []
    # The first image decides colours and size, unless they were declared.
    for file, _ in labelled_files:
        image = _read_image(path, file, size, channels)
        channels = channels or len(image)
        # A model takes inputs of one size; cutting or padding without being asked would change the records.
        if images and image.shape != images[0].shape:
            _, tall, wide = images[0].shape
            raise BadFile(
                Path(_relative_name(path, file)),
                f"{image.shape[2]} × {image.shape[1]} pixels where the first image has {wide} × {tall}",
                f"say --size {wide}x{tall} to make all of one size",
            )
        images.append(image)
    return ImageFolder(
        path,
        np.stack(images),
        [name for _, name in labelled_files],
        [_relative_name(path, file) for file, _ in labelled_files],
    )


def _read_image(path: Path, file: Path, size: tuple[int, int] | None, channels: int | None) -> NDArray[np.uint8]:
    """Returns one image of a user's image folder as bytes, (C, H, W)."""
    from PIL import Image, UnidentifiedImageError

    inside = Path(_relative_name(path, file))
    if file.suffix.lower() not in ENDINGS:
        raise BadFile(inside, f"ends in {file.suffix!r}", f"need images ({', '.join(ENDINGS)}) and nothing else there")
    try:
        with Image.open(file) as opened:
            # Transparency and palettes are converted, so that every image has one or three channels.
            number = channels or (1 if opened.mode in _GREY else 3)
            converted = opened.convert(_MODES[number])
            converted = converted if size is None else converted.resize(size, Image.Resampling.BILINEAR)
            pixels = np.asarray(converted, dtype=np.uint8)
    except (UnidentifiedImageError, OSError, SyntaxError, ValueError, Image.DecompressionBombError) as error:
        raise BadFile(inside, "cannot be read as an image", "mend it or leave it out") from error
    return pixels[None] if number == 1 else np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _relative_name(path: Path, file: Path) -> str:
    return str(file.relative_to(path.parent))
