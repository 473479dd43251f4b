"""Images and labels in memory, and a data set as its training and test parts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordino.former_names import former_method


@dataclass(frozen=True, eq=False)
class Images:
    """Images as bytes, (N, C, H, W), and labels, (N,)."""

    images: Tensor
    labels: Tensor

    def __len__(self) -> int:
        return len(self.labels)

    def to_dataset(self, mean: float = 0.0, std: float = 1.0) -> TensorDataset:
        """Returns the images scaled to (x/255 − mean)/std as float32, with labels.

        Mean and std must be public numbers: do not take them from the data.
        """
        x = self.images.to(torch.float32).div_(255)
        return TensorDataset(x.sub_(mean).div_(std), self.labels)

    scaled = former_method("scaled", "to_dataset")


@dataclass(frozen=True, eq=False)
class Data:
    """A data set of images with its training and test parts."""

    name: str
    train: Images
    test: Images
    classes: tuple[str, ...]
    generated: bool = False  # true when it stands in for real data that could not be had
