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
from sordino.data.text import texts
from sordino.nn import minilm

Say = Callable[[str], None]


def encoded(name: str, say: Say) -> tuple[TensorDataset, TensorDataset, int]:
    """Training and test texts of a data set through MiniLM, and the number of classes."""
    found = texts(name)
    train, test = (_features(part, say) for part in (found.train, found.test))
    labels = torch.tensor(found.train_labels), torch.tensor(found.test_labels)
    return TensorDataset(train, labels[0]), TensorDataset(test, labels[1]), len(found.classes)


def _features(some: list[str], say: Say) -> Tensor:
    digest = hashlib.sha256("\n".join(some).encode()).hexdigest()[:32]
    path = cache.root() / "features" / f"minilm-{minilm.VERSION}-{minilm.LENGTH}-{digest}.npy"
    if path.is_file():
        return torch.from_numpy(np.load(path)).float()
    say(f"minilm of {len(some):,} texts, once")
    made = minilm.features(some, say=say)
    with cache.workspace() as work:
        np.save(work / path.name, made.numpy().astype(np.float16))
        path.parent.mkdir(exist_ok=True)
        os.replace(work / path.name, path)
    return torch.from_numpy(np.load(path)).float()
