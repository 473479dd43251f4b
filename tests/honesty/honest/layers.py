"""Honest models of every usual layer, in their usual precisions: a record's loss is its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from tests.honesty.data import (
    CLASSES,
    INPUTS,
    WORDS,
    Listed,
    N,
    cross_entropy,
    generator,
    network,
    padded,
    sentences,
    vectors,
)
from tests.honesty.script import Cases, Script

LAYERS = Cases()


class Net(nn.Module):
    """Layers by name, and a forward pass of them."""

    def __init__(self, run: Callable[[Any, Tensor], Tensor], **layers: nn.Module) -> None:
        super().__init__()
        for name, layer in layers.items():
            self.add_module(name, layer)
        self.run = run

    def forward(self, x: Tensor) -> Tensor:
        return self.run(self, x)


def _vectors(seed: int, model: nn.Module) -> Script:
    return Script(model, cross_entropy, vectors(seed))


def pictures(seed: int) -> TensorDataset:
    g = generator(seed)
    return TensorDataset(torch.randn(N, 2, 8, 8, generator=g), torch.randint(CLASSES, (N,), generator=g))


def words(seed: int) -> TensorDataset:
    g = generator(seed)
    return TensorDataset(torch.randint(1, WORDS, (N, 7), generator=g), torch.randint(CLASSES, (N,), generator=g))


@LAYERS
def linear_layers(seed: int) -> Script:
    return _vectors(seed, network())


@LAYERS
def linear_layers_in_chunks(seed: int) -> Script:
    script = _vectors(seed, network())
    script.physical_batch = 5
    return script


@LAYERS
def layer_norm(seed: int) -> Script:
    return _vectors(seed, nn.Sequential(nn.Linear(INPUTS, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, CLASSES)))


@LAYERS
def convolutions_and_group_norm(seed: int) -> Script:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, CLASSES)
    )
    return Script(model, cross_entropy, pictures(seed))


@LAYERS
def convolutions_and_instance_norm(seed: int) -> Script:
    model = nn.Sequential(
        nn.Conv2d(2, 4, 3, bias=False), nn.InstanceNorm2d(4, affine=True), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(4, CLASSES),
    )  # fmt: skip
    return Script(model, cross_entropy, pictures(seed))


@LAYERS
def batch_norm_with_frozen_statistics(seed: int) -> Script:
    model = nn.Sequential(nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, CLASSES))
    return _vectors(seed, model.eval())


@LAYERS
def transposed_convolution(seed: int) -> Script:
    model = nn.Sequential(nn.ConvTranspose2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(300, CLASSES))
    return Script(model, cross_entropy, pictures(seed))


@LAYERS
def embedding_and_lstm(seed: int) -> Script:
    def run(m: Any, ids: Tensor) -> Tensor:
        return m.head(m.lstm(m.words(ids))[0][:, -1])

    model = Net(run, words=nn.Embedding(WORDS, 6), lstm=nn.LSTM(6, 6, batch_first=True), head=nn.Linear(6, CLASSES))
    return Script(model, cross_entropy, words(seed))


@LAYERS
def gru_of_two_layers(seed: int) -> Script:
    def run(m: Any, ids: Tensor) -> Tensor:
        return m.head(m.gru(m.words(ids))[0].mean(1))

    model = Net(
        run, words=nn.Embedding(WORDS, 6), gru=nn.GRU(6, 6, 2, batch_first=True, bidirectional=True),
        head=nn.Linear(12, CLASSES),
    )  # fmt: skip
    return Script(model, cross_entropy, words(seed))


def encoder(seed: int, dropout: float, *, unlike: bool) -> Script:
    """A transformer that is told of its padding."""

    def run(m: Any, ids: Tensor) -> Tensor:
        padding = ids == 0
        x = m.words(ids) + m.places(torch.arange(ids.shape[1]).expand(len(ids), -1))
        x = m.layer(x, src_key_padding_mask=padding)
        there = (~padding).unsqueeze(2)
        return m.head((x * there).sum(1) / there.sum(1))

    model = Net(
        run, words=nn.Embedding(WORDS, 8, padding_idx=0), places=nn.Embedding(64, 8),
        layer=nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True), head=nn.Linear(8, CLASSES),
    )  # fmt: skip
    if unlike:
        return Script(model, cross_entropy, Listed(sentences(seed, rare=20)), padded)
    return Script(model, cross_entropy, words(seed))


@LAYERS
def a_transformer(seed: int) -> Script:
    return encoder(seed, 0.0, unlike=False)


@LAYERS
def a_transformer_with_dropout(seed: int) -> Script:
    return encoder(seed, 0.1, unlike=False)


@LAYERS
def a_transformer_with_a_padding_mask(seed: int) -> Script:
    return encoder(seed, 0.0, unlike=True)


@LAYERS
def a_transformer_with_a_padding_mask_and_dropout(seed: int) -> Script:
    return encoder(seed, 0.1, unlike=True)


@LAYERS
def masked_mean_over_padding(seed: int) -> Script:
    def run(m: Any, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        return m.head((m.words(ids) * there).sum(1) / there.sum(1))

    model = Net(run, words=nn.Embedding(WORDS, 8), head=nn.Linear(8, CLASSES))
    return Script(model, cross_entropy, Listed(sentences(seed, rare=40)), padded)


@LAYERS
def lstm_state_at_the_last_word_of_each_record(seed: int) -> Script:
    def run(m: Any, ids: Tensor) -> Tensor:
        last = (ids > 0).sum(1) - 1
        return m.head(m.lstm(m.words(ids))[0][torch.arange(len(ids)), last])

    model = Net(run, words=nn.Embedding(WORDS, 6), lstm=nn.LSTM(6, 6, batch_first=True), head=nn.Linear(6, CLASSES))
    return Script(model, cross_entropy, Listed(sentences(seed, rare=20)), padded)


@LAYERS
def masked_convolution_over_padding(seed: int) -> Script:
    def run(m: Any, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(1)
        h = m.filters(m.words(ids).transpose(1, 2) * there).tanh() * there
        return m.head(h.sum(2) / there.sum(2))

    model = Net(run, words=nn.Embedding(WORDS, 6), filters=nn.Conv1d(6, 8, 3, padding=1), head=nn.Linear(8, CLASSES))
    return Script(model, cross_entropy, Listed(sentences(seed, rare=20)), padded)


@LAYERS
def token_losses_over_each_records_own_tokens(seed: int) -> Script:
    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        each = F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none", ignore_index=0)
        return each.sum(1) / (ids > 0).sum(1)

    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, WORDS))
    return Script(model, loss, Listed(sentences(seed, rare=20)), padded)


@LAYERS
def activation_checkpointing(seed: int) -> Script:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.last(checkpoint(m.inner, m.first(x), use_reentrant=False))

    inner = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
    return _vectors(seed, Net(run, first=nn.Linear(INPUTS, 8), inner=inner, last=nn.Linear(8, CLASSES)))


@LAYERS
def activation_checkpointing_with_dropout(seed: int) -> Script:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.last(checkpoint(m.inner, m.first(x), use_reentrant=False))

    inner = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.3), nn.Linear(8, 8))
    return _vectors(seed, Net(run, first=nn.Linear(INPUTS, 8), inner=inner, last=nn.Linear(8, CLASSES)))
