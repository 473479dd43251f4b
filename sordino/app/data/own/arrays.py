"""Reads an .npz file with two arrays: the records and their targets.

Whole numbers of one byte are taken for pixels, 0 to 255. Pickled objects are refused: reading one runs code.
"""

from __future__ import annotations

import io
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.app.data.own.bad_file import BadFile, read_content

TARGET = "y"


@dataclass(frozen=True, eq=False)
class Arrays:
    """Records (N, …) and targets (N,), which are whole or floating-point numbers."""

    path: Path
    x: NDArray[Any]
    y: NDArray[Any]
    name: str
    """Of the array of records."""


def read_arrays(path: Path, target: str | None) -> Arrays:
    """Returns the two arrays of a user's .npz file, records and targets; `target` names the second and is `y` by
    default.
    """
    # Find the two arrays by name.
    arrays, target_name = _load_npz(path), target or TARGET
    if target_name not in arrays:
        raise BadFile(path, f"has no array {target_name!r}, which --target names", f"there is {', '.join(arrays)}")
    others = [name for name in arrays if name != target_name]
    if len(others) != 1:
        raise BadFile(path, f"has {', '.join(arrays)}", f"need two arrays, one of them {target_name!r}")
    # Check that they belong together and hold finite numbers.
    x, y = arrays[others[0]], arrays[target_name]
    if y.ndim != 1:
        raise BadFile(path, f"{target_name!r} has the shape {y.shape}", "need one number for each record")
    if x.ndim < 2 or len(x) != len(y):
        raise BadFile(
            path,
            f"{others[0]!r} has the shape {x.shape} and {target_name!r} {len(y)} entries",
            "need a row for each entry",
        )
    if not len(y):
        raise BadFile(path, "has no records", "need a row for each")
    for name, array in ((others[0], x), (target_name, y)):
        if array.dtype.kind not in "biuf":
            raise BadFile(path, f"{name!r} holds {array.dtype}", "need whole or floating numbers")
        not_finite = ~np.isfinite(array.reshape(len(array), -1)).all(axis=1)
        if not_finite.any():
            raise BadFile(
                path, f"record {int(not_finite.argmax())} of {name!r} is not finite", "mend it or leave it out"
            )
    return Arrays(path, x, y, others[0])


def read_records(path: Path, target: str | None) -> NDArray[Any]:
    """Returns the array of records in a user's .npz file alone, with or without their targets beside them, to be
    predicted.
    """
    arrays, target_name = _load_npz(path), target or TARGET
    others = [name for name in arrays if name != target_name]
    if len(others) != 1:
        raise BadFile(path, f"has {', '.join(arrays)}", "need one array of records")
    return arrays[others[0]]


def _load_npz(path: Path) -> dict[str, NDArray[Any]]:
    """Returns the arrays of a user's .npz file; pickled objects are refused, because reading them runs code."""
    file = io.BytesIO(read_content(path))
    try:
        with np.load(file, allow_pickle=False) as packed:
            return {name: packed[name] for name in packed.files}
    except (ValueError, OSError, EOFError, zipfile.BadZipFile, AttributeError, TypeError) as error:
        if "pickle" in str(error).lower() or "object" in str(error).lower():
            raise BadFile(
                path, "holds pickled objects", "reading them runs code: save arrays of numbers with numpy.savez"
            ) from error
        raise BadFile(path, "not an .npz file, or damaged", "save it anew with numpy.savez") from error
