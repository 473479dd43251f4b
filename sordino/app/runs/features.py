"""Frozen feature maps by name, computed once for given images and cached on disk.

The file is named by a hash of the images and by the version of the map, so one result is never taken for another.
Features are kept in half precision: the rounding, 2⁻¹¹ of a value, is far below the noise of any private run.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.app.data import cache, pretrained_weights
from sordino.nn import efficientnet, scattering

Say = Callable[[str], None]
Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Features:
    """A frozen map from bytes (B, C, H, W) to features; it is built when it is needed."""

    name: str
    version: int
    chunk: int  # images at once: few enough to stay in cache
    typical: tuple[float, ...]
    """Public sizes of the channels, from no private record; repeated if there are more channels."""
    make: Callable[[Say], Map]


def _scattering(say: Say) -> Map:
    layer = scattering.Scattering()
    return lambda images: layer(images.to(torch.float32).div_(255))


def _folded(say: Say) -> Map:
    whole = _scattering(say)
    return lambda images: scattering.folded(whole(images))


def _logged(say: Say) -> Map:
    whole = _scattering(say)
    return lambda images: scattering.logged(whole(images))


def _efficientnet(say: Say) -> Map:
    network = efficientnet.EfficientNetLite0()
    network.load_folded(pretrained_weights.load(pretrained_weights.EFFICIENTNET_LITE0, say))
    return network


MAPS = {
    one.name: one
    for one in (
        Features("scattering", scattering.VERSION, 50, scattering.TYPICAL, _scattering),
        Features("scattering-folded", scattering.VERSION, 50, scattering.TYPICAL, _folded),
        Features("scattering-log", scattering.VERSION, 50, (1.0,), _logged),
        Features("efficientnet-lite0", efficientnet.VERSION, 8, (efficientnet.TYPICAL,), _efficientnet),
    )
}


def features(chosen: Features, images: Tensor, say: Say) -> Tensor:
    """Returns the features of all images in half precision, from the cache if they are there."""
    # Use the cached result if there is one.
    path = _path(chosen, images)
    found = _open(path, len(images))
    if found is not None:
        return torch.from_numpy(found)
    say(f"{chosen.name} of {len(images):,} images, once")
    # Fill a temporary memory map and move it into the cache in one step, so that no reader sees half a file.
    try:
        with cache.workspace() as folder:
            whole = folder / path.name
            shape = (len(images), *chosen.make(say)(images[:1]).shape[1:])
            _fill(np.lib.format.open_memmap(whole, "w+", np.float16, shape), chosen, images, say)
            path.parent.mkdir(exist_ok=True)
            os.replace(whole, path)
        found = _open(path, len(images))
        assert found is not None
        return torch.from_numpy(found)
    # A full or read-only disk must not stop a run: the features are computed in memory instead.
    except OSError as error:
        say(f"{chosen.name}: not kept on disk ({error})")
        first = chosen.make(say)(images[:1])
        result = np.empty((len(images), *first.shape[1:]), np.float16)
        _fill(result, chosen, images, say)
        return torch.from_numpy(result)


def _fill(result: NDArray[np.float16], chosen: Features, images: Tensor, say: Say) -> None:
    """Computes the features chunk by chunk into `result`."""
    compute = chosen.make(say)
    for start in range(0, len(images), chosen.chunk):
        result[start : start + chosen.chunk] = compute(images[start : start + chosen.chunk]).to(torch.float16).numpy()


def _path(chosen: Features, images: Tensor) -> Path:
    """Returns the cache file for these images and this version of the map."""
    digest = cache.digest(images.numpy())
    return cache.root() / "features" / f"{chosen.name}-{chosen.version}-{digest[:32]}.npy"


def _open(path: Path, rows: int) -> NDArray[np.float16] | None:
    """Opens cached features as a copy-on-write memory map; returns None if they are missing or damaged."""
    try:
        found: NDArray[np.float16] = np.load(path, mmap_mode="c")
    except (OSError, ValueError):
        return None
    return found if found.dtype == np.float16 and len(found) == rows else None
