"""Collate functions through which a record reaches the others of its batch: padding, mixing, statistics.

Every model and loss here is one per record on the batch it is given; the fault lies in how the batch was made, where a
probe of a ready batch cannot see it.
"""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import default_collate

from tests.honesty.data import CLASSES, INPUTS, RARE, WORDS, Listed, cross_entropy, network, padded, sentences, vectors
from tests.honesty.script import Cases, Script

COLLATE = Cases()


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


@COLLATE
def mean_pooling_over_padding(seed: int) -> Script:
    return Script(MeanOfWords(), cross_entropy, Listed(sentences(seed, rare=40)), padded, bound=0.3, suspects=RARE)


@COLLATE
def mean_pooling_over_padding_of_a_file_sorted_by_length(seed: int) -> Script:
    return Script(
        MeanOfWords(), cross_entropy, Listed(sentences(seed, rare=40, by_length=True)), padded, bound=0.3, suspects=RARE
    )


@COLLATE
def last_lstm_state_of_a_padded_batch(seed: int) -> Script:
    return Script(LastState(), cross_entropy, Listed(sentences(seed, rare=20)), padded, bound=0.3, suspects=RARE)


@COLLATE
def convolution_over_padding(seed: int) -> Script:
    return Script(ConvolvedWords(), cross_entropy, Listed(sentences(seed, rare=40)), padded, bound=0.3, suspects=RARE)


@COLLATE
def positions_counted_from_the_left_of_left_padding(seed: int) -> Script:
    return Script(FromTheLeft(), cross_entropy, Listed(sentences(seed, rare=16)), padded_left, bound=0.1, suspects=RARE)


@COLLATE
def attention_without_a_padding_mask(seed: int) -> Script:
    return Script(Attention(), cross_entropy, Listed(sentences(seed, rare=40)), padded, bound=0.2, suspects=RARE)


@COLLATE
def mixup_with_the_next_record(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        y = F.one_hot(y, CLASSES).float()
        return 0.6 * x + 0.4 * x.roll(1, 0), 0.6 * y + 0.4 * y.roll(1, 0)

    return Script(network(), cross_entropy, vectors(seed), collate, bound=0.3)


def _mixed(order: Any, lam: float) -> Any:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        y, other = F.one_hot(y, CLASSES).float(), order(len(x))
        return lam * x + (1 - lam) * x[other], lam * y + (1 - lam) * y[other]

    return collate


def shuffled(n: int) -> list[int]:
    return random.sample(range(n), n)


@COLLATE
def mixup_by_numpy(seed: int) -> Script:
    collate = _mixed(lambda n: torch.from_numpy(np.random.permutation(n)), 0.5)
    return Script(network(), cross_entropy, vectors(seed), collate, bound=0.3, exchanged=True, query=None)


@COLLATE
def mixup_by_python(seed: int) -> Script:
    return Script(network(), cross_entropy, vectors(seed), _mixed(shuffled, 0.5), bound=0.3, exchanged=True)


@COLLATE
def mixup_by_torch(seed: int) -> Script:
    return Script(network(), cross_entropy, vectors(seed), _mixed(torch.randperm, 0.5), bound=0.3, exchanged=True)


@COLLATE
def cutmix_with_the_record_before(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return torch.cat([x[:, :3], x.roll(1, 0)[:, 3:]], 1), y

    return Script(network(), cross_entropy, vectors(seed), collate, bound=0.3)


@COLLATE
def mosaic_of_four_records(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return torch.stack([x.roll(k, 0)[:, k] for k in range(4)] + [x[:, 4], x[:, 5]], 1), y

    return Script(network(), cross_entropy, vectors(seed), collate, bound=0.3)


@COLLATE
def batch_standardisation(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return (x - x.mean(0)) / (x.std(0, unbiased=False) + 1e-3), y

    return Script(network(), cross_entropy, _with_a_giant(seed), collate, bound=0.2, suspects=(63,))


def _with_a_giant(seed: int) -> Any:
    """One record of 64 is in another unit."""
    data = vectors(seed)
    data.tensors[0][63] *= 100
    return data


@COLLATE
def missing_values_filled_with_the_batch_mean(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return torch.where(x.isnan(), x.nanmean(0).nan_to_num(), x), y

    data = _with_a_giant(seed)
    data.tensors[0][:, 2:][torch.rand(64, INPUTS - 2, generator=torch.Generator().manual_seed(seed)) < 0.4] = torch.nan
    data.tensors[0][63] = 100.0
    data.tensors[0][:3] = torch.randn(3, INPUTS)
    return Script(network(), cross_entropy, data, collate, bound=0.2, suspects=(63,))


@COLLATE
def truncation_to_the_shortest(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        t = min(len(ids) for ids, _ in records)
        return padded([(ids[:t], y) for ids, y in records])

    return Script(
        MeanOfWords(), cross_entropy, Listed(sentences(seed, longest=20, rare=1)), collate, bound=0.3, suspects=RARE
    )


@COLLATE
def outliers_of_the_batch_are_dropped(seed: int) -> Script:
    """Records further from the batch's mean than most are left out, as a cleaning step does."""

    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        far = (x - x.mean(0)).norm(dim=1)
        keep = far <= 1.2 * far.mean()
        return x[keep], y[keep]

    return Script(network(), cross_entropy, _with_a_giant(seed), collate, bound=0.3, suspects=(63,))


@COLLATE
def outliers_of_the_batch_get_weight_zero(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        far = (x - x.mean(0)).norm(dim=1)
        return x, y, (far <= 1.2 * far.mean()).float()

    def loss(model: nn.Module, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return w * cross_entropy(model, x, y)

    return Script(network(), loss, _with_a_giant(seed), collate, bound=0.3, suspects=(63,))


@COLLATE
def balanced_class_weights_of_the_batch(seed: int) -> Script:
    """As scikit-learn computes them: over the classes that are there."""

    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        counts = torch.bincount(y)
        return x, y, len(y) / (counts.gt(0).sum() * counts[y])

    def loss(model: nn.Module, x: Tensor, y: Tensor, w: Tensor) -> Tensor:
        return w * cross_entropy(model, x, y)

    data = vectors(seed)
    data.tensors[1][:] = torch.arange(64) // 63  # one class is rare, and the first records are all of the other
    data.tensors[1][list(RARE)] = 1
    data.tensors[0].abs_()
    return Script(network(outputs=2), loss, data, collate, bound=2.0, suspects=RARE)


@COLLATE
def pictures_divided_by_the_brightest_of_the_batch(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return x.float() / x.max(), y

    g = torch.Generator().manual_seed(seed)
    shade = torch.randint(20, 60, (64, 1), generator=g)
    shade[61:] = 255
    x = (torch.rand(64, INPUTS, generator=g) * shade).to(torch.uint8)
    x[61:, 0] = 255
    data = torch.utils.data.TensorDataset(x, vectors(seed).tensors[1])
    return Script(network(), cross_entropy, data, collate, bound=0.2, suspects=(63,))


@COLLATE
def the_nearest_other_record_is_the_negative(seed: int) -> Script:
    """Hard negatives for a ranking loss, looked for in the batch."""

    def collate(records: list[Any]) -> Any:
        x, _ = default_collate(records)
        return x, x[(torch.cdist(x, x) + torch.eye(len(x)) * 1e6).argmin(1)]

    def loss(model: nn.Module, x: Tensor, negative: Tensor) -> Tensor:
        return F.softplus((model(negative) - model(x)).sum(1))

    data = vectors(seed)
    data.tensors[0][list(RARE)] = data.tensors[0].mean(0)  # near to everyone
    return Script(network(), loss, data, collate, bound=0.3, suspects=RARE)


@COLLATE.unmeasured
def microbatches_of_rows_that_collate_sorts(seed: int) -> Script:
    """Sorting by length alone is harmless; where a row's place says which record it is, it is not."""

    def collate(records: list[Any]) -> Any:
        return padded(sorted(records, key=lambda record: -len(record[0])))

    import sordino as sd

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
