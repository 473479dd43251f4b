"""Adult as numbers, encoded only by the categories and bounds of its public documentation.

Nothing is read off the records: numbers are cut to the bounds below, a category that is unknown (`?`) or not documented has
a row of zeros. Six numbers, four marks for capital gains and losses and age squared, and 99 categories: 109 columns.
"""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sordino.app.data.files import files_folder

BOUNDS = {
    "age": (17.0, 90.0),
    "fnlwgt": (0.0, 400_000.0),
    "education-num": (1.0, 16.0),
    "capital-gain": (0.0, 100_000.0),
    "capital-loss": (0.0, 4_500.0),
    "hours-per-week": (1.0, 99.0),
}
_LOGARITHMIC = ("capital-gain", "capital-loss")
_MARKS = (("capital-gain", 0.0), ("capital-gain", 5_000.0), ("capital-loss", 1_700.0))
_COLUMNS = 15
RICH = ">50K"


def load_adult() -> tuple[TensorDataset, TensorDataset, int]:
    """Returns the people of Adult, to train and to test on, as rows of numbers with labels 0 or 1, and the number of
    classes.
    """
    place = files_folder("adult")
    schema = read_schema(place / "adult.names")
    return _encode_file(place / "adult.data", schema), _encode_file(place / "adult.test", schema), 2


def read_schema(path: Path) -> dict[str, tuple[str, ...]]:
    """Returns the columns of Adult in order with their categories; a column of numbers has none."""
    descriptions = re.findall(r"^([a-z-]+): (.+)\.$", path.read_text(), re.MULTILINE)
    schema = {name: () if said == "continuous" else tuple(said.split(", ")) for name, said in descriptions}
    if len(schema) != _COLUMNS - 1:
        raise ValueError(f"{path.name}: {len(schema)} columns are described; need {_COLUMNS - 1}")
    return schema


def _encode_file(path: Path, schema: dict[str, tuple[str, ...]]) -> TensorDataset:
    """Returns the people of one file of Adult as rows of numbers, with labels."""
    names = list(schema)
    rows, labels = [], []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        # The test file begins with a comment line, and both files end with an empty one.
        if not line.strip() or line.startswith("|"):
            continue
        # Labels of the test file end with a full stop, and without it they would be none of the training file's.
        cells = [cell.strip() for cell in line.rstrip(".").split(",")]
        # A cut line would otherwise shift cells into other columns, or take another cell for the label.
        if len(cells) != _COLUMNS:
            raise ValueError(f"{path.name}, line {number}: {len(cells)} columns; need {_COLUMNS}")
        rows.append(_encode_person(dict(zip(names, cells, strict=False)), schema))
        labels.append(int(cells[-1] == RICH))
    return TensorDataset(torch.from_numpy(np.stack(rows)), torch.tensor(labels))


def _encode_person(person: dict[str, str], schema: dict[str, tuple[str, ...]]) -> NDArray[np.float32]:
    """Returns one person of Adult as a row of numbers."""
    numbers = [_scale_value(name, float(person[name])) for name in BOUNDS]
    marks = [float(float(person[name]) > above) for name, above in _MARKS]
    kinds = [float(person[name] == kind) for name, known in schema.items() for kind in known]
    return np.array([*numbers, *marks, (float(person["age"]) / 90) ** 2, *kinds], dtype=np.float32)


def _scale_value(name: str, value: float) -> float:
    """Returns a value of an Adult column cut to its public bounds and scaled to [−1, 1]."""
    low, high = BOUNDS[name]
    cut = min(max(value, low), high)
    if name in _LOGARITHMIC:
        cut, high = float(np.log1p(cut)), float(np.log1p(high))
    return 2 * (cut - low) / (high - low) - 1
