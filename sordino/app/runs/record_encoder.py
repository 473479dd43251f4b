"""The encoder of a run: how a user's record becomes the numbers a model takes, and its outputs classes or units again.

It is chosen when a run begins and kept in `encoder.json` of the run directory, so that a trained model can be used on rows
that nobody encoded: `sordino predict RUN new.csv`, or `sordino.load(RUN)`.

Privacy: an encoder holds what was declared, and what was read off the records, which the claim names. It acts on each
record by itself.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.app.data.own.columns import Column, EncodingScheme, column_from_table
from sordino.app.data.own.rows import TableRows
from sordino.app.runs.features import compute_text_features

ENCODER = "encoder.json"
_FORMAT = 1
Say = Callable[[str], None]


@dataclass(frozen=True)
class RecordEncoder:
    """How records become numbers, for each kind of data: table, text, images, arrays; tensors are taken as they are."""

    kind: str
    shape: tuple[int, ...]
    """Of one encoded record."""
    outputs: int
    """Classes, or 1."""
    unbounded: int = 0
    """How many numbers come first whose bounds are found privately, in a layer of the model."""
    classes: tuple[str, ...] = ()
    columns: tuple[Column, ...] = ()
    """Of a table."""
    text: str | None = None
    """The column that holds a text."""
    features: str = "none"
    """Of texts: minilm, tokens or words."""
    bounds: tuple[float, float] | None = None
    """Of the numbers of arrays and images, which are cut to them and scaled to [−1, 1]."""
    target: str | None = None
    target_bounds: tuple[float, float] | None = None
    """Of a target that is a number."""

    def with_shape(self, shape: Sequence[int]) -> RecordEncoder:
        """Returns the encoder with the shape of its records, known when the first were encoded."""
        return replace(self, shape=tuple(shape))

    @property
    def titles(self) -> list[str]:
        """What the numbers of a record of a table are."""
        return [title for column in self.columns for title in column.titles]

    @property
    def needed_columns(self) -> tuple[str, ...]:
        """The columns that a table must have to be encoded."""
        return (self.text,) if self.text is not None else tuple(one.name for one in self.columns)

    @property
    def units_per_one(self) -> float:
        """How many of its own units the target moves when the scaled target moves by one."""
        return 1.0 if self.target_bounds is None else (self.target_bounds[1] - self.target_bounds[0]) / 2

    def encode_table(self, rows: TableRows, say: Say = lambda _: None) -> Tensor:
        """Returns the rows of a user's table as the numbers that the record encoder makes of them; faulty cells are
        entered in `rows.faults`.
        """
        if self.text is not None:
            return compute_text_features(rows.column(self.text, "--text"), self.features, say)
        return torch.from_numpy(EncodingScheme(self.columns).encode(rows))

    def encode_array(self, values: NDArray[Any]) -> Tensor:
        """Returns pixels or an array of numbers, scaled by their bounds; pictures without colours get one channel."""
        x = torch.from_numpy(values.astype(np.float32)) if self.bounds is None else scale_to_unit(values, *self.bounds)
        return x.unsqueeze(1) if x.dim() == 3 and len(self.shape) == 3 else x

    def decode_numbers(self, outputs: Tensor) -> Tensor:
        """Returns a model's scaled outputs in the target's own units, which the record encoder knows, cut to its
        declared bounds.
        """
        if self.target_bounds is None:
            return outputs
        low, high = self.target_bounds
        return (low + (outputs.double() + 1) / 2 * (high - low)).clamp(low, high)

    def table(self) -> dict[str, Any]:
        """Returns the content of encoder.json."""
        own = {name: value for name, value in vars(self).items() if value not in (None, (), 0, "none")}
        return {"format": _FORMAT, **own, "columns": [one.table() for one in self.columns]}


def encoder_from_table(table: Mapping[str, Any]) -> RecordEncoder:
    """Creates the record encoder of a run from the content of encoder.json."""
    own: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in table.items() if name != "format"
    }
    return RecordEncoder(**{**own, "columns": tuple(column_from_table(one) for one in table.get("columns", ()))})


def read_encoder(folder: Path) -> RecordEncoder:
    """Returns the record encoder that a run directory holds.

    Raises:
        ValueError: if there is none, as in runs made before version 0.3, or if it cannot be understood.

    """
    try:
        table = json.loads((folder / ENCODER).read_text("utf-8"))
    except FileNotFoundError:
        raise ValueError(
            f"{folder}: has no {ENCODER}, which runs keep since version 0.3.\n"
            "Its model file is model.safetensors; train again to use it on rows."
        ) from None
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"{folder / ENCODER}: cannot be read ({error})") from error
    if not isinstance(table, dict) or table.get("format") != _FORMAT:
        raise ValueError(f"{folder / ENCODER}: not as this version writes it; use the version that wrote it")
    try:
        return encoder_from_table(table)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder / ENCODER}: not as a run writes it ({error})") from error


def scale_to_unit(values: NDArray[Any], low: float, high: float) -> Tensor:
    """Returns values cut to the bounds and mapped linearly to [−1, 1]."""
    return torch.from_numpy(np.clip(values.astype(np.float32), low, high)).sub_(low).mul_(2 / (high - low)).sub_(1)
