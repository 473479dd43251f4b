"""Turns texts into numbers, each by itself: vectors of a frozen encoder, tokens, or hashed words.

    minilm    the mean of MiniLM's token vectors, (384,)
    tokens    token numbers and mask, (2, 64), for a model that reads them
    words     how often each word is there, by a hash of it into 4,096 places: no vocabulary, nothing to fetch

Privacy: the encoder, the tokenizer's vocabulary and the hash are public and have learnt nothing from this data set. The
cache holds private records in another form: it is as private as the data.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordino.app.data import cache, minilm
from sordino.app.data.friends import CLASSES, load_friends
from sordino.app.data.labelled_texts import load_texts

Say = Callable[[str], None]

OF_TEXTS = ("minilm", "tokens", "words")
PLACES = 4096
_WORD = re.compile(r"\w+")
_LINE = 32
"""Tokens of a spoken line that are read, the first ones."""


def encode_texts(name: str, features: str, say: Say) -> tuple[TensorDataset, TensorDataset, int]:
    """Returns the training and test texts of a data set as numbers, and the number of classes."""
    labelled_texts = load_texts(name)
    train, test = (compute_text_features(part, features, say) for part in (labelled_texts.train, labelled_texts.test))
    labels = torch.tensor(labelled_texts.train_labels), torch.tensor(labelled_texts.test_labels)
    return TensorDataset(train, labels[0]), TensorDataset(test, labels[1]), len(labelled_texts.classes)


def encode_by_speaker(say: Say) -> tuple[TensorDataset, TensorDataset, int, Tensor]:
    """Returns the lines of Friends as sentence vectors, the number of classes, and the speaker of every training line."""
    train, test = load_friends()
    encoded_parts = [
        TensorDataset(_cached_vectors(part.texts, say, _LINE), torch.tensor(part.labels)) for part in (train, test)
    ]
    numbers: dict[str, int] = {}
    speakers = torch.tensor([numbers.setdefault(speaker, len(numbers)) for speaker in train.speakers])
    return encoded_parts[0], encoded_parts[1], len(CLASSES), speakers


def compute_text_features(texts_given: list[str], features: str, say: Say) -> Tensor:
    """Returns texts as numbers, a row for each."""
    if features == "tokens":
        return torch.stack(minilm.tokenize(texts_given, say=say), dim=1)  # (N, 2, T)
    return hash_words(texts_given) if features == "words" else _cached_vectors(texts_given, say)


def hash_words(texts_given: list[str]) -> Tensor:
    """Returns the square roots of hashed word counts, (N, 4096), with each row scaled to length 8.

    >>> hash_words(["one two one", ""]).square().sum(1).tolist()
    [64.0, 0.0]
    """
    counts = torch.zeros(len(texts_given), PLACES)
    for row, text in zip(counts, texts_given, strict=True):
        for word in _WORD.findall(text.lower()):
            row[int.from_bytes(hashlib.blake2b(word.encode(), digest_size=4).digest(), "big") % PLACES] += 1
    return torch.nn.functional.normalize(counts.sqrt_(), dim=1).mul_(8)


def _cached_vectors(texts_given: list[str], say: Say, length: int = minilm.LENGTH) -> Tensor:
    """Returns the sentence vectors of texts, from the cache if they are there."""
    digest = hashlib.sha256("\n".join(texts_given).encode()).hexdigest()[:32]
    path = cache.cache_folder() / "features" / f"minilm-{minilm.VERSION}-{length}-{digest}.npy"
    if path.is_file():
        return torch.from_numpy(np.load(path)).float()
    say(f"minilm of {len(texts_given):,} texts, once")
    vectors = minilm.sentence_vectors(texts_given, length, say)
    with cache.workspace() as work:
        np.save(work / path.name, vectors.numpy().astype(np.float16))
        path.parent.mkdir(exist_ok=True)
        os.replace(work / path.name, path)
    return torch.from_numpy(np.load(path)).float()
