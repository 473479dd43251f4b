"""The records of a run as numbers, and the encoder that makes such numbers of further records.

`Prepared` holds training and test records after the recipe's frozen feature map, and what the claim must name of them.
`RecordEncoder` says how a user's record becomes the numbers a model takes, and its outputs classes or units again. It is
chosen when a run begins and kept in `encoder.json` of the run directory, so that a trained model can be used on rows that
nobody encoded: `sordino predict RUN new.csv`, or `sordino.load(RUN)`.

**Privacy:** a feature map and an encoder act on one record at a time and have learnt nothing from this data set, so a
neighbouring data set has the same numbers but for one row. An encoder holds what was declared, and what was read off the
records, which the claim names. The digest that recognises the training records is keyed with the run's own secret, because
a plain digest of private data is itself a release.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.app.data import Data
from sordino.app.data.own.columns import Column, EncodingScheme, column_from_table
from sordino.app.data.own.rows import TableRows
from sordino.app.runs.features import MAPS, compute_features, compute_text_features
from sordino.app.runs.recipe import Recipe

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
        # A text goes through its feature map; other tables are encoded column by column.
        if self.text is not None:
            return compute_text_features(rows.column(self.text, "--text"), self.features, say)
        return torch.from_numpy(EncodingScheme(self.columns).encode(rows))

    def encode_array(self, values: NDArray[Any]) -> Tensor:
        """Encodes pixels or an array of numbers, scaled by their bounds; pictures without colours get one channel."""
        # Declared bounds scale the numbers; without them a layer of the model finds bounds privately.
        x = torch.from_numpy(values.astype(np.float32)) if self.bounds is None else scale_to_unit(values, *self.bounds)
        return x.unsqueeze(1) if x.dim() == 3 and len(self.shape) == 3 else x

    def decode_numbers(self, outputs: Tensor) -> Tensor:
        """Returns a model's scaled outputs in the target's own units, which the record encoder knows, cut to its
        declared bounds.
        """
        if self.target_bounds is None:
            return outputs
        # The inverse of the scaling to [−1, 1]; no prediction lies outside what was declared.
        low, high = self.target_bounds
        return (low + (outputs.double() + 1) / 2 * (high - low)).clamp(low, high)

    def table(self) -> dict[str, Any]:
        """Returns the content of encoder.json."""
        own = {name: value for name, value in vars(self).items() if value not in (None, (), 0, "none")}
        return {"format": _FORMAT, **own, "columns": [one.table() for one in self.columns]}


def encoder_from_table(table: Mapping[str, Any]) -> RecordEncoder:
    """Creates the record encoder of a run from the content of encoder.json."""
    # JSON has lists for tuples; columns have a form of their own.
    own: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in table.items() if name != "format"
    }
    # Unknown fields raise a TypeError, which the reader of the file turns into a message.
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
    # The file is not trusted: it may be of another version, or damaged.
    if not isinstance(table, dict) or table.get("format") != _FORMAT:
        raise ValueError(f"{folder / ENCODER}: not as this version writes it; use the version that wrote it")
    try:
        return encoder_from_table(table)
    except (TypeError, KeyError, AttributeError) as error:
        raise ValueError(f"{folder / ENCODER}: not as a run writes it ({error})") from error


def scale_to_unit(values: NDArray[Any], low: float, high: float) -> Tensor:
    """Returns values cut to the bounds and mapped linearly to [−1, 1]."""
    return torch.from_numpy(np.clip(values.astype(np.float32), low, high)).sub_(low).mul_(2 / (high - low)).sub_(1)


@dataclass(frozen=True, eq=False)
class Prepared:
    """The records that a run trains and tests on, as numbers (N, C, …) with targets.

    Where the feature map is expensive they are in half precision, so that they fit in memory.
    """

    train: TensorDataset
    test: TensorDataset
    classes: int
    units: Tensor | None = None
    """Whose each training record is, where lots are drawn by unit."""
    network: nn.Module | None = None
    """A user's own model, where one was given."""
    before_features: tuple[Tensor, ...] | None = None
    """The training records as they were before the feature map, with their units; None: as they are in `train`."""
    generated: bool = False
    """Whether the records were made by a program and are nobody's."""
    not_covered: tuple[str, ...] = ()
    """What the claim must name, of own data."""
    validation: TensorDataset | None = None
    """Public records by whose loss the model is kept, where some were given."""
    patience: int | None = None
    """Evaluations without a lower loss on them after which the run takes no more steps."""
    own_encoder: RecordEncoder | None = None
    """How a record of own data became numbers."""
    _digests: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def drawn(self) -> int:
        """How many things lots are drawn from: units or records."""
        return len(self.train) if self.units is None else len(self.units.unique())

    @property
    def shape(self) -> torch.Size:
        """The shape of one record's features, channels first."""
        return self.train.tensors[0].shape[1:]

    @property
    def encoder(self) -> RecordEncoder:
        """The encoder that a model trained on these records needs to take others: that of own data, or the shape of
        tensors.
        """
        return self.own_encoder or RecordEncoder("tensors", tuple(self.shape), self.classes)

    def first_records(self, limit: int | None) -> Prepared:
        """Returns a run's encoded records with the first `limit` training records alone; None keeps all."""
        if limit is None:
            return self
        if limit > len(self.train):
            raise ValueError(f"records={limit}: the training set has {len(self.train)}")
        # Records, their units and their form before features are cut alike.
        train = TensorDataset(*(tensor[:limit] for tensor in self.train.tensors))
        units = None if self.units is None else self.units[:limit]
        before = None if self.before_features is None else tuple(tensor[:limit] for tensor in self.before_features)
        return replace(self, train=train, units=units, before_features=before, _digests={})

    def digest(self, key: str) -> str:
        """Returns a keyed digest that recognises a run's encoded training records; the key is hexadecimal, and the
        digest is computed once.
        """
        if key not in self._digests:
            # Shapes and types go in as well, because the same bytes may mean other records.
            hasher = hashlib.blake2b(key=bytes.fromhex(key), digest_size=16)
            for tensor in self.before_features or self.train.tensors:
                hasher.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
                hasher.update(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
            self._digests[key] = hasher.hexdigest()
        return self._digests[key]


def prepare(recipe: Recipe, data: Data, say: Callable[[str], None] = lambda _: None) -> Prepared:
    """Returns a data set of images as encoded records: after the recipe's feature map or, without one, as scaled
    pixels.
    """

    def features_of(images: Tensor) -> Tensor:
        if recipe.features == "none":
            return scale_pixels(images, recipe.pixel_mean, recipe.pixel_deviation)
        return compute_features(MAPS[recipe.features], images, say)

    train, test = (TensorDataset(features_of(part.images), part.labels) for part in (data.train, data.test))
    before = (data.train.images, data.train.labels)
    return Prepared(train, test, len(data.classes), before_features=before, generated=data.generated)


def scale_pixels(images: Tensor, mean: float | tuple[float, ...], deviation: float | tuple[float, ...]) -> Tensor:
    """Returns images as encoded records without a feature map: bytes as numbers in [0, 1], centred and scaled by public
    numbers; mean ½ and deviation ½ give [−1, 1].

    Mean and deviation are one number for all channels, or one for each.
    """
    # One number for all channels needs one pass over the bytes.
    if isinstance(mean, float) and isinstance(deviation, float):
        return images.to(torch.float32).div_(255 * deviation).sub_(mean / deviation)
    centre, scale = _per_channel("pixel_mean", mean, images), _per_channel("pixel_deviation", deviation, images)
    return images.to(torch.float32).div_(255).sub_(centre).div_(scale)


def _per_channel(name: str, given: float | tuple[float, ...], images: Tensor) -> Tensor:
    """Returns a number for each channel of images that are encoded, in a shape that broadcasts over images."""
    # One number is broadcast to all channels.
    numbers, channels = given if isinstance(given, tuple) else (given,), images.shape[1]
    if len(numbers) not in (1, channels):
        raise ValueError(f"{name}={numbers}: the images have {channels} channels; need one number, or one for each")
    return torch.tensor(numbers).view(1, -1, 1, 1)  # (1, C, 1, 1)
