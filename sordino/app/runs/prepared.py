"""The records of a run after its frozen feature map, and what its claim must name of them.

**Privacy:** a feature map looks at one record at a time and has learnt nothing from this data set, so a neighbouring
data set has the same features but for one row. The digest that recognises the training records is keyed with the run's own
secret, because a plain digest of private data is itself a release.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.app.data import Data, Images
from sordino.app.runs.features import MAPS, compute_features
from sordino.app.runs.recipe import Recipe
from sordino.app.runs.record_encoder import RecordEncoder


@dataclass(frozen=True, eq=False)
class Prepared:
    """Features (N, C, …) with labels, in half precision where the map is expensive, so that they fit in memory."""

    train: TensorDataset
    test: TensorDataset
    classes: int
    units: Tensor | None = None
    """Whose each training record is, where lots are drawn by unit."""
    unbounded: int = 0
    """How many numbers of a record come first whose bounds are to be found."""
    class_names: tuple[str, ...] = ()
    """Of own data."""
    network: nn.Module | None = None
    """A user's own model, where one was given."""

    @property
    def drawn(self) -> int:
        """How many things lots are drawn from: units or records."""
        return len(self.train) if self.units is None else len(self.units.unique())

    @property
    def shape(self) -> torch.Size:
        """The shape of one record's features, channels first."""
        return self.train.tensors[0].shape[1:]


def prepare(recipe: Recipe, data: Data, say: Callable[[str], None] = lambda _: None) -> Prepared:
    """Returns the data after the recipe's feature map."""
    chosen = _encoder_of(recipe)
    return Prepared(chosen(data.train, say), chosen(data.test, say), len(data.classes))


def _encoder_of(recipe: Recipe) -> Callable[[Images, Callable[[str], None]], TensorDataset]:
    """Returns the function by which records are prepared: it turns images into features or, without a feature map, into
    scaled pixels.
    """
    if recipe.features == "none":
        mean, deviation = recipe.pixel_mean, recipe.pixel_deviation
        return lambda images, say: TensorDataset(scale_pixels(images.images, mean, deviation), images.labels)
    chosen = MAPS[recipe.features]
    return lambda images, say: TensorDataset(compute_features(chosen, images.images, say), images.labels)


def scale_pixels(images: Tensor, mean: float | tuple[float, ...], deviation: float | tuple[float, ...]) -> Tensor:
    """Returns images prepared without a feature map: bytes as numbers in [0, 1], centred and scaled by public numbers;
    mean ½ and deviation ½ give [−1, 1].

    Mean and deviation are one number for all channels, or one for each.
    """
    if isinstance(mean, float) and isinstance(deviation, float):
        return images.to(torch.float32).div_(255 * deviation).sub_(mean / deviation)
    centre, scale = _per_channel("pixel_mean", mean, images), _per_channel("pixel_deviation", deviation, images)
    return images.to(torch.float32).div_(255).sub_(centre).div_(scale)


def _per_channel(name: str, given: float | tuple[float, ...], images: Tensor) -> Tensor:
    """Returns a number for each channel of the images to be prepared, in a shape that broadcasts over images."""
    numbers, channels = given if isinstance(given, tuple) else (given,), images.shape[1]
    if len(numbers) not in (1, channels):
        raise ValueError(f"{name}={numbers}: the images have {channels} channels; need one number, or one for each")
    return torch.tensor(numbers).view(1, -1, 1, 1)  # (1, C, 1, 1)


@dataclass(frozen=True, eq=False)
class RunData:
    """The records that a run trains and tests on."""

    prepared: Prepared
    private: tuple[Tensor, ...]  # the training records as they were before the feature map
    generated: bool
    not_covered: tuple[str, ...] = ()
    """What the claim must name, of own data."""
    own_encoder: RecordEncoder | None = None
    """How a record of own data became numbers."""
    _digests: dict[str, str] = field(default_factory=dict, repr=False)

    @property
    def encoder(self) -> RecordEncoder:
        """What a model trained on these prepared records needs to take others: the encoder of own data, or the shape of
        tensors.
        """
        if self.own_encoder is not None:
            return self.own_encoder
        return RecordEncoder("tensors", tuple(self.prepared.shape), self.prepared.classes, self.prepared.unbounded)

    def digest(self, key: str) -> str:
        """Returns a keyed digest that recognises a run's prepared training records; the key is hexadecimal, and the
        digest is computed once.
        """
        if key not in self._digests:
            self._digests[key] = self._compute_digest(bytes.fromhex(key))
        return self._digests[key]

    def _compute_digest(self, key: bytes) -> str:
        """Returns the keyed digest of the shapes, types and bytes of a run's prepared training records."""
        hasher = hashlib.blake2b(key=key, digest_size=16)
        for tensor in self.private:
            hasher.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
            hasher.update(np.ascontiguousarray(tensor.numpy()).reshape(-1).view(np.uint8).data)
        return hasher.hexdigest()
