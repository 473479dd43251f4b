"""Reads a user's own file: turns records into numbers, targets into classes or numbers.

**Privacy:** each record's numbers are made of that record, by what was declared; a record is held out by a hash of itself.
Whatever was read off the records besides is in `not_covered`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.app.data.own import arrays, image_folder, rows
from sordino.app.data.own.bad_file import BadFile
from sordino.app.data.own.columns import MOST_CATEGORIES, Column, declared_column, encoded, number, places, scheme
from sordino.app.data.own.declared_columns import Declared
from sordino.app.data.own.rows import TableRows
from sordino.app.runs.own_file import OwnFile
from sordino.app.runs.text_data import text_features

Say = Callable[[str], None]
T = TypeVar("T")

_CLASSES = "which classes there are, read off the data; give classes"
_IMAGES = "size and colours of the images, read off the first one; give size and channels"
_PIXELS = 255.0


@dataclass(frozen=True, eq=False)
class RecordsFromFile:
    """The records (N, …) and targets of one file, with the bytes by which each record is identified."""

    x: Tensor
    y: Tensor
    keys: list[bytes]
    outputs: int
    """Classes, or 1."""
    classes: tuple[str, ...] | None = None
    titles: tuple[str, ...] = ()
    """Of a record's numbers, where they have names."""
    unbounded: int = 0
    """How many of them come first whose bounds are to be found."""
    not_covered: tuple[str, ...] = ()
    units: Tensor | None = None
    """Whose each record is, where lots are drawn by unit."""


def read(
    own: OwnFile, features: str, classifies: bool, say: Say, unit: str | None = None
) -> tuple[RecordsFromFile, RecordsFromFile | None]:
    """Returns the records of the file and, if there is one, of the test file, encoded in the same way.

    `unit` is the column that says whose a record is. It is not learnt from, and all records of a unit are identified
    by it alone.
    """
    # Images and arrays have readers of their own.
    if unit is not None and (own.of_images or own.of_arrays):
        raise ValueError(
            f"unit={unit!r}: tables and texts have a column that says whose a record is; Private.draws takes ids"
        )
    if own.of_images:
        return _images(own, classifies)
    if own.of_arrays:
        return _arrays(own, classifies)
    if own.target is None:
        raise ValueError("own data without --target: which column is to be learnt?")
    # The target's classes or bounds come from what was declared; whatever is read off the records is listed.
    found = rows.read(Path(own.path), own.delimiter)
    test = None if own.test is None else rows.read(Path(own.test), own.delimiter)
    aim, told = _target(found, own, own.target, classifies)
    owners = () if unit is None else (unit,)
    if unit is not None and unit in (own.target, own.text):
        raise ValueError(
            f"unit={unit!r}: is what is learnt, or learnt from; need the column that says whose a record is"
        )
    # Each record is encoded by itself: a text by a public encoder, a row by the scheme of its columns.
    if own.text is not None:
        found.column(own.text, "--text")
        names: tuple[str, ...] = ()
        unbounded, read_off = 0, told

        def x_of(one: TableRows) -> Tensor:
            return text_features(one.column(own.text or "", "--text"), features, say)

    else:
        by = scheme(found, own.declared, (own.target, *own.drop, *owners))
        if unit is not None and by.unbounded:
            raise BadFile(
                found.path,
                f"columns of numbers without bounds, by {unit}: {', '.join(by.titles[: by.unbounded])}",
                f"give them, because they are found by record, not by {unit}: --bounds {by.titles[0]}=low:high",
            )
        names, unbounded, read_off = tuple(by.titles), by.unbounded, (*by.read_off, *told)

        def x_of(one: TableRows) -> Tensor:
            return torch.from_numpy(by.encode(one))

    def records(one: TableRows) -> RecordsFromFile:
        """Returns one table as records; a bad target is reported before texts are encoded, which takes long."""
        whose = None if unit is None else one.column(unit, "--unit")
        keys = [name.encode() for name in whose] if whose else ["\x1f".join(row).encode() for row in one.cells]
        y = _told(one, aim)  # a bad row of the target is told before texts are encoded
        outputs = 1 if aim.categories is None else len(aim.categories)
        return RecordsFromFile(
            x_of(one),
            y,
            keys,
            outputs,
            aim.categories,
            names,
            unbounded,
            read_off,
            None if whose is None else numbered(whose),
        )

    return records(found), None if test is None else records(test)


def numbered(whose: Sequence[str]) -> Tensor:
    """Returns a number for each name, counted in the order in which the names are met.

    >>> numbered(["ann", "bob", "ann"]).tolist()
    [0, 1, 0]
    """
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in whose])


def _target(found: TableRows, own: OwnFile, target: str, classifies: bool) -> tuple[Column, tuple[str, ...]]:
    """Returns the target column and what had to be read off the records to know it."""
    cells = found.column(target, "--target")
    # A numerical target needs declared bounds.
    if not classifies:
        if target not in own.bounds:
            raise BadFile(
                found.path,
                f"the target {target!r} is a number without bounds",
                f"give them: --bounds {target}=low:high",
            )
        return Column(target, bounds=own.bounds[target]), ()
    given = own.classes or own.categories.get(target)
    if given is not None:
        return declared_column(target, Declared(categories={target: given})), ()
    # Without declared classes they are read off the data, which the claim then names.
    classes = tuple(sorted(set(cells)))
    if len(classes) > MOST_CATEGORIES:
        wanted = f"for a number say --loss squared --bounds {target}=low:high"
        cure = wanted if number(cells[0]) is not None else "choose another target, or give its classes"
        raise BadFile(found.path, f"the target {target!r} has more than {MOST_CATEGORIES} different values", cure)
    _two(found.path, target, classes)
    return Column(target, categories=classes), (_CLASSES,)


def _told(one: TableRows, aim: Column) -> Tensor:
    """Returns the targets of a table: scaled numbers, or the number of each record's class."""
    if aim.categories is None:
        return torch.from_numpy(encoded(one, aim).astype(np.float32))
    return torch.from_numpy(places(one, aim))


def _images(own: OwnFile, classifies: bool) -> tuple[RecordsFromFile, RecordsFromFile | None]:
    """Reads a folder of images by class, and the test folder if there is one."""
    if not classifies:
        raise ValueError("images have classes, the names of their folders: leave --loss out")
    found = image_folder.read(Path(own.path), own.size, own.channels)
    _, channels, tall, wide = found.images.shape
    classes = own.classes or tuple(sorted(set(found.classes)))
    _two(found.path, "the folders", classes)
    # Whatever was not declared had to be read off the data, and the claim names it.
    told = [] if own.classes else [_CLASSES]
    told += [] if own.size is not None and own.channels is not None else [_IMAGES]

    def records(one: image_folder.ImageFolder) -> RecordsFromFile:
        """Returns one folder as records with pixels in [−1, 1]."""
        y = [_place(classes, name, Path(file)) for name, file in zip(one.classes, one.files, strict=True)]
        keys = [image.tobytes() + name.encode() for image, name in zip(one.images, one.classes, strict=True)]
        x = _scaled(one.images, 0.0, _PIXELS)
        return RecordsFromFile(x, torch.tensor(y), keys, len(classes), classes, not_covered=tuple(told))

    if own.test is None:
        return records(found), None
    test = image_folder.read(Path(own.test), own.size or (wide, tall), own.channels or channels)
    return records(found), records(test)


def _arrays(own: OwnFile, classifies: bool) -> tuple[RecordsFromFile, RecordsFromFile | None]:
    """Reads an .npz file of records and targets, and the test file if there is one."""
    found = arrays.read(Path(own.path), own.target)
    target = own.target or arrays.TARGET
    told: list[str] = []
    classes: tuple[str, ...] | None = None
    # Find the classes, or require bounds for a numerical target.
    if classifies:
        if found.y.dtype.kind == "f":
            raise BadFile(found.path, f"{target!r} holds floating numbers", "say --loss squared, or save whole numbers")
        classes = own.classes or tuple(str(one) for one in np.unique(found.y))
        told += [] if own.classes else [_CLASSES]
        _two(found.path, target, classes)
    elif target not in own.bounds:
        raise BadFile(
            found.path, f"the target {target!r} is a number without bounds", f"say --bounds {target}=low:high"
        )
    # Bytes have known bounds; other records of more than two dimensions need declared ones.
    bounds = own.bounds.get(found.name, (0.0, _PIXELS) if found.x.dtype == np.uint8 else None)
    if bounds is None and found.x.ndim > 2:
        raise BadFile(
            found.path, f"the records of {found.name!r} have no bounds", f"say --bounds {found.name}=low:high"
        )

    def records(one: arrays.Arrays) -> RecordsFromFile:
        """Returns one file as records, scaled by the declared bounds where there are any."""
        if one.x.shape[1:] != found.x.shape[1:]:
            raise BadFile(one.path, f"records of shape {one.x.shape[1:]}", f"need {found.x.shape[1:]}, as in the data")
        keys = [row.tobytes() + label.tobytes() for row, label in zip(one.x, one.y, strict=True)]
        x = torch.from_numpy(one.x.astype(np.float32)) if bounds is None else _scaled(one.x, *bounds)
        if x.dim() == 3:  # pictures without colours
            x = x.unsqueeze(1)
        if classes is None:
            y = _scaled(one.y.reshape(-1, 1), *own.bounds[target])
        else:
            y = torch.tensor([_place(classes, str(label), one.path, at) for at, label in enumerate(one.y.tolist())])
        unbounded = x.shape[1] if bounds is None else 0
        return RecordsFromFile(x, y, keys, len(classes or (1,)), classes, (), unbounded, tuple(told))

    test = None if own.test is None else records(arrays.read(Path(own.test), own.target))
    return records(found), test


def _scaled(values: NDArray[Any], low: float, high: float) -> Tensor:
    """Returns values cut to the bounds and mapped linearly to [−1, 1]."""
    return torch.from_numpy(np.clip(values.astype(np.float32), low, high)).sub_(low).mul_(2 / (high - low)).sub_(1)


def _place(classes: Sequence[str], name: str, path: Path, record: int | None = None) -> int:
    """Returns the number of a class; raises if it is not a declared one."""
    if name not in classes:
        where = "its class" if record is None else f"the class of record {record}"
        raise BadFile(path, f"{where} is none of those declared", "declare it, or leave the record out")
    return classes.index(name)


def _two(path: Path, what: str, classes: Sequence[str]) -> None:
    """Raises if there are fewer than two classes."""
    if len(classes) < 2:
        raise BadFile(path, f"only one class in {what!r}", "need two or more to learn to tell them apart")
