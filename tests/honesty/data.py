"""Small private datasets of the usual shapes: vectors, sentences, pictures, tables."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, TensorDataset

N, INPUTS, CLASSES, WORDS = 64, 6, 3, 20


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 + seed)


def vectors(seed: int, *, by_class: bool = False) -> TensorDataset:
    """Points of three classes; in the order of their classes, as many files are."""
    g = generator(seed)
    y = torch.arange(N) % CLASSES
    if by_class:
        y = y.sort().values
    centres = torch.randn(CLASSES, INPUTS, generator=g)
    return TensorDataset(centres[y] + torch.randn(N, INPUTS, generator=g), y)


RARE = (63, 47, 31, 15)
"""Records that are unlike the others: one in sixteen."""


def sentences(
    seed: int, *, shortest: int = 3, longest: int = 8, rare: int | None = None, by_length: bool = False
) -> list[tuple[Tensor, int]]:
    """Word numbers from 1, of unlike lengths, and a class; 0 is left for padding. `RARE` ones may have another length."""
    g = generator(seed)
    lengths = torch.randint(shortest, longest + 1, (N,), generator=g)
    if by_length:
        lengths = lengths.sort().values
        lengths[:4] = shortest
    if rare is not None:
        lengths[list(RARE)] = rare
    return [
        (torch.randint(1, WORDS, (int(t),), generator=g), int(torch.randint(CLASSES, (), generator=g))) for t in lengths
    ]


def padded(records: Sequence[tuple[Tensor, int]]) -> tuple[Tensor, Tensor]:
    """To the longest of the batch, as every tutorial does."""
    ids = nn.utils.rnn.pad_sequence([ids for ids, _ in records], batch_first=True)
    return ids, torch.tensor([y for _, y in records])


class Listed(Dataset[Any]):
    """Records in a list."""

    def __init__(self, records: Sequence[Any]) -> None:
        self.records = list(records)

    def __len__(self) -> int:
        return len(self.records)

    def __getitem__(self, i: int) -> Any:
        return self.records[i]


def network(hidden: int = 8, inputs: int = INPUTS, outputs: int = CLASSES) -> nn.Sequential:
    return nn.Sequential(nn.Linear(inputs, hidden), nn.Tanh(), nn.Linear(hidden, outputs))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return F.cross_entropy(model(x), y, reduction="none")
