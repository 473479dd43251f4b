"""A data set as the frozen features of a recipe, computed once and kept beside the data.

**Privacy:** a feature map looks at one record at a time and has learnt nothing from this data set, so a neighbouring
data set has the same features but for one row. The cache holds private records in another form: it is as private as the
data.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordino.data import Data, Images
from sordino.recipes.features import MAPS, features
from sordino.recipes.recipe import Recipe


@dataclass(frozen=True, eq=False)
class Prepared:
    """Features (N, C, …) with labels; half precision where the map is expensive, so that they fit in memory."""

    train: TensorDataset
    test: TensorDataset
    classes: int

    @property
    def shape(self) -> torch.Size:
        """Of one record's features, channels first."""
        return self.train.tensors[0].shape[1:]


def prepare(recipe: Recipe, data: Data, say: Callable[[str], None] = lambda _: None) -> Prepared:
    """The data through the recipe's feature map."""
    chosen = _chosen(recipe.features)
    return Prepared(chosen(data.train, say), chosen(data.test, say), len(data.classes))


def _chosen(name: str) -> Callable[[Images, Callable[[str], None]], TensorDataset]:
    if name == "none":
        return lambda images, say: TensorDataset(pixels(images.images), images.labels)
    chosen = MAPS[name]
    return lambda images, say: TensorDataset(features(chosen, images.images, say), images.labels)


def pixels(images: Tensor) -> Tensor:
    """Bytes to [−1, 1]: public numbers, not the data's mean and deviation."""
    return images.to(torch.float32).div_(127.5).sub_(1)
