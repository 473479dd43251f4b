"""Texts as vectors of a frozen encoder, computed once and kept beside the data.

Privacy: the encoder looks at one text at a time and has learnt nothing from this data set. The cache holds private records
in another form: it is as private as the data.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import TensorDataset

from sordino.data import cache
from sordino.data.friends import CLASSES, friends
from sordino.data.text import texts
from sordino.nn import minilm

Say = Callable[[str], None]

_LINE = 32
"""Tokens of a spoken line that are read, the first ones."""


def encoded(name: str, say: Say) -> tuple[TensorDataset, TensorDataset, int]:
    """Training and test texts of a data set through MiniLM, and the number of classes."""
    found = texts(name)
    train, test = (_features(part, say) for part in (found.train, found.test))
    labels = torch.tensor(found.train_labels), torch.tensor(found.test_labels)
    return TensorDataset(train, labels[0]), TensorDataset(test, labels[1]), len(found.classes)


def encoded_by_speaker(say: Say) -> tuple[TensorDataset, TensorDataset, int, Tensor]:
    """Lines of Friends through MiniLM, the number of classes, and the speaker of every training line."""
    train, test = friends()
    made = [TensorDataset(_features(part.texts, say, _LINE), torch.tensor(part.labels)) for part in (train, test)]
    numbers: dict[str, int] = {}
    speakers = torch.tensor([numbers.setdefault(speaker, len(numbers)) for speaker in train.speakers])
    return made[0], made[1], len(CLASSES), speakers


def _features(some: list[str], say: Say, length: int = minilm.LENGTH) -> Tensor:
    digest = hashlib.sha256("\n".join(some).encode()).hexdigest()[:32]
    path = cache.root() / "features" / f"minilm-{minilm.VERSION}-{length}-{digest}.npy"
    if path.is_file():
        return torch.from_numpy(np.load(path)).float()
    say(f"minilm of {len(some):,} texts, once")
    made = minilm.features(some, length, say)
    with cache.workspace() as work:
        np.save(work / path.name, made.numpy().astype(np.float16))
        path.parent.mkdir(exist_ok=True)
        os.replace(work / path.name, path)
    return torch.from_numpy(np.load(path)).float()
