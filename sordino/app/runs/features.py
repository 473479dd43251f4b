"""Images and texts as numbers: frozen feature maps by name, computed once for given records and cached on disk.

    scattering, scattering-folded, scattering-log, efficientnet-lite0    of images
    efficientnet-lite0-maps    what its last bottleneck is given, (192, 5, 5), for the model efficientnet-end
    minilm    the mean of MiniLM's token vectors, (384,)
    tokens    token numbers and mask, (2, 64), for a model that reads them
    words     how often each word is there, by a hash of it into 4,096 places: no vocabulary, nothing to fetch

A file in the cache is named by a hash of the records and by the version of the map, so one result is never taken for
another. Features are kept in half precision: the rounding, 2⁻¹¹ of a value, is far below the noise of any private run.

Privacy: maps, encoders, vocabularies and hashes are public and have learnt nothing from the data set. The cache holds
private records in another form: it is as private as the data.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from sordino.app.data import cache, minilm, pretrained_weights
from sordino.app.data.friends import CLASSES, load_friends
from sordino.app.data.labelled_texts import load_texts
from sordino.nn import efficientnet, scattering

Say = Callable[[str], None]
Map = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class FeatureMap:
    """A frozen map from bytes (B, C, H, W) to features; it is built when it is needed."""

    name: str
    version: int
    images_at_once: int  # images at once: few enough to stay in cache
    typical_sizes: tuple[float, ...]
    """Public sizes of the channels, from no private record; repeated if there are more channels."""
    build: Callable[[Say], Map]


def _build_scattering(say: Say) -> Map:
    layer = scattering.Scattering()
    return lambda images: layer(images.to(torch.float32).div_(255))


def _build_folded_scattering(say: Say) -> Map:
    scattering_map = _build_scattering(say)
    return lambda images: scattering.fold_mirror(scattering_map(images))


def _build_log_scattering(say: Say) -> Map:
    scattering_map = _build_scattering(say)
    return lambda images: scattering.take_logarithm(scattering_map(images))


def _build_efficientnet(say: Say) -> Map:
    return pretrained_weights.load_efficientnet(say)


def _build_efficientnet_maps(say: Say) -> Map:
    return pretrained_weights.load_efficientnet(say).compute_maps


MAPS = {
    one.name: one
    for one in (
        FeatureMap("scattering", scattering.VERSION, 50, scattering.TYPICAL, _build_scattering),
        FeatureMap("scattering-folded", scattering.VERSION, 50, scattering.TYPICAL, _build_folded_scattering),
        FeatureMap("scattering-log", scattering.VERSION, 50, (1.0,), _build_log_scattering),
        FeatureMap("efficientnet-lite0", efficientnet.VERSION, 8, (efficientnet.TYPICAL,), _build_efficientnet),
        FeatureMap("efficientnet-lite0-maps", efficientnet.VERSION, 8, (1.0,), _build_efficientnet_maps),
    )
}


def compute_features(feature_map: FeatureMap, images: Tensor, say: Say) -> Tensor:
    """Returns the frozen features of all images in half precision, from the cache if they are there."""
    # Use the cached result if there is one.
    path = _cache_path(feature_map, images)
    cached = _open_cached(path, len(images))
    if cached is not None:
        return torch.from_numpy(cached)
    say(f"{feature_map.name} of {len(images):,} images, once")
    # Fill a temporary memory map and move it into the cache in one step, so that no reader sees half a file.
    try:
        with cache.workspace() as folder:
            temporary_path = folder / path.name
            shape = (len(images), *feature_map.build(say)(images[:1]).shape[1:])
            _fill_features(np.lib.format.open_memmap(temporary_path, "w+", np.float16, shape), feature_map, images, say)
            path.parent.mkdir(exist_ok=True)
            os.replace(temporary_path, path)
        cached = _open_cached(path, len(images))
        assert cached is not None
        return torch.from_numpy(cached)
    # A full or read-only disk must not stop a run: the features are computed in memory instead.
    except OSError as error:
        say(f"{feature_map.name}: not kept on disk ({error})")
        first = feature_map.build(say)(images[:1])
        result = np.empty((len(images), *first.shape[1:]), np.float16)
        _fill_features(result, feature_map, images, say)
        return torch.from_numpy(result)


def _fill_features(result: NDArray[np.float16], feature_map: FeatureMap, images: Tensor, say: Say) -> None:
    """Computes the frozen features of images chunk by chunk into `result`."""
    # Chunks are small enough that a chunk and its features stay in the processor's cache.
    compute = feature_map.build(say)
    for start in range(0, len(images), feature_map.images_at_once):
        result[start : start + feature_map.images_at_once] = (
            compute(images[start : start + feature_map.images_at_once]).to(torch.float16).numpy()
        )


def _cache_path(feature_map: FeatureMap, images: Tensor) -> Path:
    """Returns the cache file for these images and this version of the map."""
    digest = cache.array_digest(images.numpy())
    return cache.cache_folder() / "features" / f"{feature_map.name}-{feature_map.version}-{digest[:32]}.npy"


def _open_cached(path: Path, rows: int) -> NDArray[np.float16] | None:
    """Opens cached features as a copy-on-write memory map; returns None if they are missing or damaged."""
    try:
        # Opened without being read into memory; a write would stay in this process.
        mapped: NDArray[np.float16] = np.load(path, mmap_mode="c")
    except (OSError, ValueError):
        return None
    return mapped if mapped.dtype == np.float16 and len(mapped) == rows else None


OF_TEXTS = ("minilm", "tokens", "words")
PLACES = 4096
_WORD = re.compile(r"\w+")
_LINE = 32
"""Tokens of a spoken line that are read, the first ones."""


def encode_texts(name: str, features: str, say: Say) -> tuple[TensorDataset, TensorDataset, int]:
    """Returns the features of a data set's training and test texts, and the number of classes."""
    # Training and test texts go through the same frozen map.
    labelled_texts = load_texts(name)
    train, test = (compute_text_features(part, features, say) for part in (labelled_texts.train, labelled_texts.test))
    labels = torch.tensor(labelled_texts.train_labels), torch.tensor(labelled_texts.test_labels)
    return TensorDataset(train, labels[0]), TensorDataset(test, labels[1]), len(labelled_texts.classes)


def encode_by_speaker(say: Say) -> tuple[TensorDataset, TensorDataset, int, Tensor]:
    """Returns the features of the lines of Friends (sentence vectors), the number of classes, and the speaker of every
    training line.
    """
    # A speaker is numbered when first met; the numbers say only which lines have the same one.
    train, test = load_friends()
    encoded_parts = [
        TensorDataset(_cached_vectors(part.texts, say, _LINE), torch.tensor(part.labels)) for part in (train, test)
    ]
    numbers: dict[str, int] = {}
    speakers = torch.tensor([numbers.setdefault(speaker, len(numbers)) for speaker in train.speakers])
    return encoded_parts[0], encoded_parts[1], len(CLASSES), speakers


def compute_text_features(texts_given: list[str], features: str, say: Say) -> Tensor:
    """Returns the features of texts, a row for each, by the name of a feature map."""
    if features == "tokens":
        return torch.stack(minilm.tokenize(texts_given, say=say), dim=1)  # (N, 2, T)
    return hash_words(texts_given) if features == "words" else _cached_vectors(texts_given, say)


def hash_words(texts_given: list[str]) -> Tensor:
    """Returns the word features of texts: the square roots of hashed word counts, (N, 4096), with each row scaled to
    length 8.

    >>> hash_words(["one two one", ""]).square().sum(1).tolist()
    [64.0, 0.0]
    """
    # A hash needs no vocabulary, so nothing is learnt from the texts.
    counts = torch.zeros(len(texts_given), PLACES)
    for row, text in zip(counts, texts_given, strict=True):
        for word in _WORD.findall(text.lower()):
            row[int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big") % PLACES] += 1
    return torch.nn.functional.normalize(counts.sqrt_(), dim=1).mul_(8)


def _cached_vectors(texts_given: list[str], say: Say, length: int = minilm.LENGTH) -> Tensor:
    """Returns the sentence vectors of texts, which are frozen features, from the cache if they are there."""
    # The cache knows a result by the texts and the version of the encoder.
    digest = hashlib.sha256("\n".join(texts_given).encode()).hexdigest()[:32]
    path = cache.cache_folder() / "features" / f"minilm-{minilm.VERSION}-{length}-{digest}.npy"
    if path.is_file():
        return torch.from_numpy(np.load(path)).float()
    say(f"minilm of {len(texts_given):,} texts, once")
    # Written beside the cache and moved in at once, as all cached files are.
    vectors = minilm.sentence_vectors(texts_given, length, say)
    with cache.workspace() as work:
        np.save(work / path.name, vectors.numpy().astype(np.float16))
        path.parent.mkdir(exist_ok=True)
        os.replace(work / path.name, path)
    return torch.from_numpy(np.load(path)).float()
