"""Padding, or the size of the batch, that reaches a record's loss in a pass that draws at random.

Another padding draws other numbers, so two passes cannot be compared as they are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.honesty.attacks.padding import padded_left
from tests.honesty.data import CLASSES, INPUTS, RARE, WORDS, Listed, cross_entropy, network, padded, sentences, vectors
from tests.honesty.script import Cases, Script

RANDOM_PADDING = Cases()
Pool = Callable[["Reader", Tensor, Tensor], Tensor]


class Reader(nn.Module):
    """Embeds words, and pools what it makes of them with a function that sees the padding."""

    def __init__(self, pool: Pool, dropout: float = 0.0) -> None:
        super().__init__()
        self.words, self.head, self.drop = nn.Embedding(WORDS, 8), nn.Linear(8, CLASSES), nn.Dropout(dropout)
        self.lstm, self.filters = nn.LSTM(8, 8, batch_first=True), nn.Conv1d(8, 8, 3, padding=1)
        self.places, self.score = nn.Embedding(64, 8), nn.Linear(8, 1)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
        self.pool = pool

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.pool(self, self.words(ids), ids))  # type: ignore[no-any-return]


def noisy(h: Tensor) -> Tensor:
    return h + 0.1 * torch.randn_like(h)


POOLS: dict[str, tuple[Pool, float]] = {
    "noisy embeddings and a mean over padding": (lambda m, h, ids: noisy(h).mean(1), 0.0),
    "noise in proportion and a mean over padding": (lambda m, h, ids: (h * (1 + 0.1 * torch.randn_like(h))).mean(1), 0.0),
    "dropout and a mean over padding": (lambda m, h, ids: m.drop(h).mean(1), 0.2),
    "dropout and a maximum over padding": (lambda m, h, ids: m.drop(h).amax(1), 0.2),
    "dropout and the last state of an lstm": (lambda m, h, ids: m.lstm(m.drop(h))[0][:, -1], 0.2),
    "dropout and convolution over padding": (lambda m, h, ids: m.filters(m.drop(h).transpose(1, 2)).tanh().mean(2), 0.2),
    "dropout and attention without a mask": (lambda m, h, ids: m.layer(h)[:, 0], 0.2),
    "dropout and softmax pooling over padding": (
        lambda m, h, ids: (m.score(h).softmax(1) * m.drop(h)).sum(1), 0.2,
    ),
    "word dropout and a mean over padding": (
        lambda m, h, ids: (h * (torch.rand(ids.shape) > 0.1).unsqueeze(2)).mean(1), 0.0,
    ),
    "uniform noise and a sum over padding": (lambda m, h, ids: (h + 0.1 * torch.rand_like(h)).sum(1) / 8, 0.0),
    "gumbel noise and a mean over padding": (lambda m, h, ids: noisy(h).mean(1) + F.gumbel_softmax(h, dim=2)[:, 0], 0.0),
}  # fmt: skip
for _name, (_pool, _dropout) in POOLS.items():

    def _build(seed: int, pool: Pool = _pool, dropout: float = _dropout) -> Script:
        data = Listed(sentences(seed, rare=40))
        return Script(Reader(pool, dropout), cross_entropy, data, padded, bound=0.2, suspects=RARE, exchanged=True)

    _build.__name__ = _name
    RANDOM_PADDING(_build)


@RANDOM_PADDING
def dropout_and_positions_from_the_left_of_left_padding(seed: int) -> Script:
    def pool(m: Reader, h: Tensor, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        places = m.places(torch.arange(ids.shape[1]).expand(len(ids), -1))
        return (m.drop(h) * places * there).sum(1) / there.sum(1)  # type: ignore[no-any-return]

    data = Listed(sentences(seed, rare=20))
    return Script(Reader(pool, 0.2), cross_entropy, data, padded_left, bound=0.1, suspects=RARE, exchanged=True)


@RANDOM_PADDING
def a_variational_autoencoder_of_texts(seed: int) -> Script:
    """The code of a text is drawn around a mean over its words and its padding."""

    class Autoencoder(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.code, self.out = nn.Embedding(WORDS, 8), nn.Linear(8, 8), nn.Linear(4, WORDS)

        def forward(self, ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            mean, spread = self.code(self.words(ids).mean(1)).chunk(2, 1)
            z = mean + torch.randn_like(mean) * (spread / 2).exp()
            return self.out(z), mean, spread

    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        logits, mean, spread = model(ids)
        each = F.cross_entropy(logits.unsqueeze(2).expand(-1, -1, ids.shape[1]), ids, reduction="none", ignore_index=0)
        divergence = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1)
        return each.sum(1) / (ids > 0).sum(1) + divergence  # type: ignore[no-any-return]

    data = Listed(sentences(seed, rare=40))
    return Script(Autoencoder(), loss, data, padded, bound=0.2, suspects=RARE, exchanged=True)


def _dropped() -> nn.Module:
    return nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Dropout(0.2), nn.Linear(8, CLASSES))


@RANDOM_PADDING.unmeasured  # one record fewer draws other numbers for all, so the sums of two worlds cannot be compared
def losses_over_the_size_of_the_batch_beside_dropout(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return 12 * cross_entropy(model, x, y) / len(x)

    return Script(_dropped(), loss, vectors(seed), bound=5.0)


@RANDOM_PADDING.unmeasured
def losses_over_the_root_of_the_batch_beside_noise(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return 4 * cross_entropy(model, x + 0.1 * torch.randn_like(x), y) / len(x) ** 0.5

    return Script(network(), loss, vectors(seed), bound=5.0)


@RANDOM_PADDING
def token_losses_over_the_tokens_of_the_batch_beside_dropout(seed: int) -> Script:
    def loss(model: Any, ids: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none", ignore_index=0)
        return 20 * each.sum(1) / (ids > 0).sum()

    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Dropout(0.2), nn.Linear(6, WORDS))
    data = Listed([(ids.clamp(max=1), y) for ids, y in sentences(seed, rare=60)])
    return Script(model, loss, data, padded, bound=2.0, suspects=RARE)


@RANDOM_PADDING
def masked_words_drawn_by_collate_and_a_mean_over_padding(seed: int) -> Script:
    """BERT's task with a collator that draws which words are hidden, and a loss that divides by the padded length."""

    def collate(records: list[Any]) -> Any:
        ids, _ = padded(records)
        hidden = (torch.rand(ids.shape) < 0.3) & (ids > 0)
        return ids.masked_fill(hidden, WORDS - 1), ids, hidden

    def loss(model: nn.Module, given: Tensor, ids: Tensor, hidden: Tensor) -> Tensor:
        each = F.cross_entropy(model(given).transpose(1, 2), ids, reduction="none")
        return 5 * (each * hidden).sum(1) / ids.shape[1]

    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, WORDS))
    return Script(model, loss, Listed(sentences(seed, rare=60)), collate, bound=0.5, suspects=RARE, exchanged=True)
