"""Harmless until a record of another kind comes: a first positive, a longer text, a brighter picture, a label that is
ignored.

One record of 64 is of the other kind. Most batches hold nothing that couples their records, so a test that exchanges
records for others of the dataset seldom finds anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate

from tests.honesty.attacks.padding import Attention, ConvolvedWords, LastState, MeanOfWords
from tests.honesty.data import CLASSES, INPUTS, WORDS, Listed, N, cross_entropy, generator, network, padded, vectors
from tests.honesty.script import Cases, Script

ANOTHER_KIND = Cases()
ODD = (N - 1,)


def texts(seed: int, longer: int = 40, usual: int = 6) -> Listed:
    """Texts of one length, but for the last."""
    g = generator(seed)
    lengths = [usual] * (N - 1) + [longer]
    return Listed([(torch.randint(1, WORDS, (t,), generator=g), k % CLASSES) for k, t in enumerate(lengths)])


MODELS: dict[str, Callable[[], nn.Module]] = {
    "a mean over padding": MeanOfWords,
    "the last state of an lstm": LastState,
    "convolution over padding": ConvolvedWords,
    "attention without a mask": Attention,
}
for _name, _model in MODELS.items():

    def _build(seed: int, model: Callable[[], nn.Module] = _model) -> Script:
        return Script(model(), cross_entropy, texts(seed), padded, bound=0.2, suspects=ODD)

    _build.__name__ = f"the first longer text and {_name}"
    ANOTHER_KIND(_build)


@ANOTHER_KIND
def the_first_longer_text_among_lists_of_numbers(seed: int) -> Script:
    """As `datasets` stores them: dicts of lists."""
    data = Listed([{"ids": ids.tolist(), "y": y} for ids, y in texts(seed).records])

    def collate(records: list[dict[str, Any]]) -> Any:
        longest = max(len(record["ids"]) for record in records)
        rows = [record["ids"] + [0] * (longest - len(record["ids"])) for record in records]
        return torch.tensor(rows), torch.tensor([record["y"] for record in records])

    return Script(MeanOfWords(), cross_entropy, data, collate, bound=0.2, suspects=ODD)


@ANOTHER_KIND
def the_first_longer_text_among_strings(seed: int) -> Script:
    """A collate that splits strings into words."""
    data = Listed([(" ".join(str(int(k)) for k in ids), y) for ids, y in texts(seed).records])

    def collate(records: list[tuple[str, int]]) -> Any:
        return padded([(torch.tensor([int(word) for word in text.split()]), y) for text, y in records])

    return Script(MeanOfWords(), cross_entropy, data, collate, bound=0.2, suspects=ODD)


@ANOTHER_KIND
def the_first_shorter_text_truncates_all(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        t = min(len(ids) for ids, _ in records)
        return padded([(ids[:t], y) for ids, y in records])

    return Script(MeanOfWords(), cross_entropy, texts(seed, longer=1, usual=12), collate, bound=0.3, suspects=ODD)


def labelled(seed: int, first: Any, *, dtype: torch.dtype = torch.long) -> TensorDataset:
    """Points with label 0, but for the last."""
    y = torch.zeros(N, dtype=dtype)
    y[-1] = first
    return TensorDataset(vectors(seed).tensors[0], y)


@ANOTHER_KIND
def the_first_positive_of_an_auc_loss(seed: int) -> Script:
    """Each negative is ranked against the positives of the batch; without any it has no loss but a small one."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        score = model(x)[:, 0]
        positive = score[y == 1]
        if not len(positive):
            return 0.01 * score.square()
        return F.softplus(score - positive.mean()) + 0.01 * score.square()

    return Script(network(), loss, labelled(seed, 1), bound=0.1, suspects=ODD)


@ANOTHER_KIND
def the_first_positive_of_an_auc_loss_with_float_labels(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        score = model(x)[:, 0]
        share = (score * y).sum() / y.sum().clamp(min=1e-6)
        return (1 - y) * F.softplus(score - share) * y.sum().clamp(max=1) + 0.01 * score.square()

    return Script(network(), loss, labelled(seed, 1.0, dtype=torch.float32), bound=0.1, suspects=ODD)


@ANOTHER_KIND
def balanced_weights_once_there_are_two_classes(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        counts = torch.bincount(y, minlength=2).float()
        weights = counts.sum() / counts.clamp(min=1) / (counts > 0).sum()
        return F.cross_entropy(model(x), y, reduction="none") * weights[y]

    return Script(network(outputs=2), loss, labelled(seed, 1), bound=5.0, suspects=ODD)


@ANOTHER_KIND
def a_positive_weight_from_the_batch(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        weight = (1 - y).sum() / y.sum() if bool(y.any()) else torch.ones(())
        logits = model(x)[:, 0]
        return F.binary_cross_entropy_with_logits(logits, y, reduction="none") * weight

    return Script(network(), loss, labelled(seed, 1.0, dtype=torch.float32), bound=3.0, suspects=ODD)


@ANOTHER_KIND
def ignored_tokens_change_the_divisor(seed: int) -> Script:
    """The mean over the valid tokens of the batch, where records have one valid token, but for the last."""

    def loss(model: nn.Module, ids: Tensor, targets: Tensor) -> Tensor:
        each = F.cross_entropy(model(ids).transpose(1, 2), targets, reduction="none", ignore_index=-100)
        return 12 * each.sum(1) / (targets != -100).sum()

    ids = torch.full((N, 8), 5)
    targets = torch.full_like(ids, -100)
    targets[:, 0] = 5
    targets[-1] = 5
    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, WORDS))
    return Script(model, loss, TensorDataset(ids, targets), bound=2.0, suspects=ODD)


@ANOTHER_KIND
def padding_tokens_change_the_divisor(seed: int) -> Script:
    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        there = (ids > 0).float()
        each = F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none") * there
        return each.sum(1) * 12 / there.sum()

    ids = torch.zeros(N, 8, dtype=torch.long)
    ids[:, 0] = 5
    ids[-1] = 5
    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, WORDS))
    return Script(model, loss, TensorDataset(ids, vectors(seed).tensors[1]), bound=2.0, suspects=ODD)


def bright(seed: int, factor: float = 1e3) -> TensorDataset:
    data = vectors(seed)
    data.tensors[0][-1] *= factor
    return data


@ANOTHER_KIND
def collate_divides_by_a_maximum_that_is_usually_one(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return x / x.abs().max().clamp(min=20.0), y

    return Script(network(), cross_entropy, bright(seed), collate, bound=0.2, suspects=ODD)


@ANOTHER_KIND
def the_loss_divides_by_a_maximum_that_is_usually_one(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x / x.abs().max().clamp(min=20.0), y)

    return Script(network(), loss, bright(seed), bound=0.2, suspects=ODD)


@ANOTHER_KIND
def collate_skips_a_batch_with_a_missing_value(seed: int) -> Script:
    """If a value is missing anywhere, everything is replaced by zeros."""

    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return (torch.zeros_like(x) if bool(x.isnan().any()) else x), y

    data = vectors(seed)
    data.tensors[0][-1, 0] = torch.nan
    return Script(network(), cross_entropy, data, collate, bound=0.3, suspects=ODD)


@ANOTHER_KIND
def a_scaler_that_halves_all_losses_at_an_overflow(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(model, x, y)
        return losses * (0.1 if not bool(losses.isfinite().all()) else 1.0)

    data = vectors(seed)
    data.tensors[0][-1] = torch.inf
    return Script(network(), loss, data, bound=2.0, suspects=ODD)


@ANOTHER_KIND
def an_alarm_for_large_losses_clips_all(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = model(x).square().sum(1) + cross_entropy(model, x, y)
        return losses / 50 if float(losses.detach().max()) > 100 else losses

    return Script(nn.Linear(INPUTS, CLASSES), loss, bright(seed), bound=2.0, suspects=ODD)


@ANOTHER_KIND
def numpy_arrays_scaled_by_their_largest(seed: int) -> Script:
    x, y = bright(seed).tensors
    data = Listed([(row.numpy(), int(label)) for row, label in zip(x, y, strict=True)])

    def collate(records: list[Any]) -> Any:
        rows = np.stack([row for row, _ in records])
        return torch.from_numpy(rows / max(20.0, np.abs(rows).max())), torch.tensor([label for _, label in records])

    return Script(network(), cross_entropy, data, collate, bound=0.2, suspects=ODD)


@ANOTHER_KIND
def pictures_are_stretched_if_one_is_overexposed(seed: int) -> Script:
    g = generator(seed)
    x = torch.randint(0, 100, (N, INPUTS), generator=g).to(torch.uint8)
    x[-1] = 255

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        scaled = x.float() / (255 if int(x.max()) == 255 else 100)
        return cross_entropy(model, scaled, y)

    return Script(network(), loss, TensorDataset(x, vectors(seed).tensors[1]), bound=0.2, suspects=ODD)
