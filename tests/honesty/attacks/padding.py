"""Padding to the longest of a batch, seen by models that are not told where it is.

Every model here is one per record on the batch it is given; how long the batch is depends on the longest of its records.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import sordino as sd
from tests.honesty.data import CLASSES, RARE, WORDS, Listed, cross_entropy, padded, sentences
from tests.honesty.script import Cases, Script

PADDING = Cases()


class MeanOfWords(nn.Module):
    """Pools over the padding too."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.words(ids).mean(1))


class LastState(nn.Module):
    """Reads an LSTM after the padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.lstm = nn.Embedding(WORDS, 6, padding_idx=0), nn.LSTM(6, 6, batch_first=True)
        self.head = nn.Linear(6, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.words(ids))[0][:, -1])


class ConvolvedWords(nn.Module):
    """Filters see the padding, and the pooling takes what they make of it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.filters = nn.Embedding(WORDS, 6), nn.Conv1d(6, 8, 3, padding=1)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.filters(self.words(ids).transpose(1, 2)).tanh().mean(2))


class FromTheLeft(nn.Module):
    """Positions are counted from the left, and so is the padding: where a word stands depends on the longest sentence."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, 8), nn.Embedding(16, 8)
        self.head = nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        x = (self.words(ids) * self.places(torch.arange(ids.shape[1]).expand(len(ids), -1)) * there).sum(1)
        return self.head(x / there.sum(1))


class Attention(nn.Module):
    """A transformer layer that is told of no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.layer(self.words(ids))[:, 0])


def padded_left(records: list[Any]) -> tuple[Tensor, Tensor]:
    ids, y = padded([(ids.flip(0), y) for ids, y in records])
    return ids.flip(1), y


@PADDING
def mean_pooling_over_padding(seed: int) -> Script:
    return Script(MeanOfWords(), cross_entropy, Listed(sentences(seed, rare=40)), padded, bound=0.3, suspects=RARE)


@PADDING
def mean_pooling_over_padding_of_a_file_sorted_by_length(seed: int) -> Script:
    return Script(
        MeanOfWords(), cross_entropy, Listed(sentences(seed, rare=40, by_length=True)), padded, bound=0.3, suspects=RARE
    )


@PADDING
def last_lstm_state_of_a_padded_batch(seed: int) -> Script:
    return Script(LastState(), cross_entropy, Listed(sentences(seed, rare=20)), padded, bound=0.3, suspects=RARE)


@PADDING
def convolution_over_padding(seed: int) -> Script:
    return Script(ConvolvedWords(), cross_entropy, Listed(sentences(seed, rare=40)), padded, bound=0.3, suspects=RARE)


@PADDING
def positions_counted_from_the_left_of_left_padding(seed: int) -> Script:
    return Script(FromTheLeft(), cross_entropy, Listed(sentences(seed, rare=16)), padded_left, bound=0.1, suspects=RARE)


@PADDING
def attention_without_a_padding_mask(seed: int) -> Script:
    return Script(Attention(), cross_entropy, Listed(sentences(seed, rare=40)), padded, bound=0.2, suspects=RARE)


@PADDING
def truncation_to_the_shortest(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        t = min(len(ids) for ids, _ in records)
        return padded([(ids[:t], y) for ids, y in records])

    return Script(
        MeanOfWords(), cross_entropy, Listed(sentences(seed, longest=20, rare=1)), collate, bound=0.3, suspects=RARE
    )


@PADDING.unmeasured
def microbatches_of_rows_that_collate_sorts(seed: int) -> Script:
    """Sorting by length alone is harmless; where a row's place says which record it is, it is not."""

    def collate(records: list[Any]) -> Any:
        return padded(sorted(records, key=lambda record: -len(record[0])))

    query = sd.Microbatches(sd.Flat(0.3), sd.Gaussian(2.0), sd.ByCoin(4))
    data = Listed(sentences(seed))
    return Script(Masked(), cross_entropy, data, collate, bound=0.3, query=query)


class Masked(nn.Module):
    """Pools over words alone."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        return self.head((self.words(ids) * there).sum(1) / there.sum(1))
