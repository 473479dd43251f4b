"""Honest losses that only take valid records, and honest randomness beside padding: no check may break them or doubt
them."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset, default_collate

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
from tests.honesty.honest.layers import Net
from tests.honesty.script import Cases, Script, Training

VALID = Cases()


def shares(seed: int) -> Tensor:
    """Numbers between 0 and 1."""
    return torch.rand(N, INPUTS, generator=generator(seed)) * 0.98 + 0.01


@VALID
def a_variational_autoencoder_with_binary_cross_entropy(seed: int) -> Script:
    def loss(model: Any, x: Tensor) -> Tensor:
        mean, spread = model.first(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        made = F.binary_cross_entropy(model.last(z).sigmoid(), x, reduction="none").sum(1)
        return made + 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1)  # type: ignore[no-any-return]

    model = Net(lambda m, x: m.last(m.first(x)[:, :3]), first=nn.Linear(INPUTS, 6), last=nn.Linear(3, INPUTS))
    return Script(model, loss, TensorDataset(shares(seed)))


@VALID
def labels_of_many_kinds_by_binary_cross_entropy(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy(model(x).sigmoid(), y, reduction="none").sum(1)

    y = (torch.rand(N, CLASSES, generator=generator(seed)) < 0.3).float()
    return Script(network(), loss, TensorDataset(vectors(seed).tensors[0], y))


@VALID
def a_binary_classifier_with_a_sigmoid(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.binary_cross_entropy(model(x)[:, 0].sigmoid(), y, reduction="none")

    y = (torch.rand(N, generator=generator(seed)) < 0.3).float()
    return Script(network(), loss, TensorDataset(vectors(seed).tensors[0], y))


@VALID
def a_beta_likelihood(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        a, b, _ = F.softplus(model(x)).add(0.1).unbind(1)
        return -torch.distributions.Beta(a, b).log_prob(y)

    return Script(network(), loss, TensorDataset(vectors(seed).tensors[0], shares(seed)[:, 0]))


@VALID
def a_poisson_likelihood(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return -torch.distributions.Poisson(F.softplus(model(x)[:, 0]) + 0.1).log_prob(y)

    y = torch.poisson(torch.full((N,), 2.0), generator=generator(seed))
    return Script(network(), loss, TensorDataset(vectors(seed).tensors[0], y))


@VALID
def ids_stored_as_floats(seed: int) -> Script:
    ids = torch.randint(0, WORDS, (N, 2), generator=generator(seed))
    x = torch.cat([ids.float(), vectors(seed).tensors[0]], 1)

    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(torch.cat([m.words(x[:, :2].long()).flatten(1), x[:, 2:]], 1))

    model = Net(run, words=nn.Embedding(WORDS, 4), head=nn.Linear(8 + INPUTS, CLASSES))
    return Script(model, cross_entropy, TensorDataset(x, vectors(seed).tensors[1]))


@VALID
def a_loss_with_asserts(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        assert bool(((x >= 0) & (x <= 1)).all()), f"values outside [0, 1]: {x}"
        assert bool((y < CLASSES).all()), y
        return cross_entropy(model, x, y)

    return Script(network(), loss, TensorDataset(shares(seed), vectors(seed).tensors[1]))


@VALID
def a_collate_with_asserts(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        assert all(3 <= len(ids) <= 20 and 0 <= y < CLASSES for ids, y in records), "unknown record"
        return padded(records)

    def run(m: Any, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        return m.head((m.words(ids) * there).sum(1) / there.sum(1))

    model = Net(run, words=nn.Embedding(WORDS, 8), head=nn.Linear(8, CLASSES))
    return Script(model, cross_entropy, Listed(sentences(seed, rare=20)), collate)


@VALID
def a_weight_that_the_loop_sets(seed: int) -> Script:
    """The annealing of a divergence, counted in the loop."""

    class Annealed:
        weight = 0.0

        def __call__(self, model: Any, x: Tensor, y: Tensor) -> Tensor:
            z = model(x)
            return F.cross_entropy(z, y, reduction="none") + self.weight * z.square().sum(1)  # type: ignore[no-any-return]

    loss = Annealed()

    def body(training: Training) -> None:
        loss.weight = min(1.0, training.k / 50)
        training.private.backward(training.lot)
        training.optimizer.step()

    return Script(network(), loss, vectors(seed), body=body)


@VALID
def losses_are_noted_for_a_plot(seed: int) -> Script:
    """State that holds records and never comes back to a loss."""
    noted: list[Tensor] = []

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(model, x, y)
        noted.append(losses.detach())
        return losses

    return Script(network(), loss, vectors(seed))


def language_model(seed: int, dropout: float, draw: Callable[[Tensor], Tensor]) -> Script:
    """BERT's task as its collator makes it: padding to the longest, and words hidden at random in collate."""

    def collate(records: list[Any]) -> Any:
        ids, _ = padded(records)
        hidden = draw(ids) & (ids > 0)
        given = ids.masked_fill(hidden, WORDS - 1)
        return {"ids": given, "labels": ids.masked_fill(~hidden, -100), "mask": (ids > 0).long()}

    def run(m: Any, ids: Tensor, mask: Tensor) -> Tensor:
        x = m.words(ids) + m.places(torch.arange(ids.shape[1]).expand(len(ids), -1))
        return m.head(m.layer(m.drop(x), src_key_padding_mask=mask == 0))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words, self.places, self.head = nn.Embedding(WORDS, 8), nn.Embedding(64, 8), nn.Linear(8, WORDS)
            self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=dropout, batch_first=True)
            self.drop = nn.Dropout(dropout)

        def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
            return run(self, ids, mask)

    def loss(model: nn.Module, ids: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        each = F.cross_entropy(model(ids, mask).transpose(1, 2), labels, reduction="none", ignore_index=-100)
        return each.sum(1) / (labels != -100).sum(1).clamp(min=1)  # type: ignore[no-any-return]

    return Script(Model(), loss, Listed(sentences(seed, rare=20)), collate)


@VALID
def a_masked_language_model_with_a_random_collator(seed: int) -> Script:
    return language_model(seed, 0.0, lambda ids: torch.rand(ids.shape) < 0.3)


@VALID
def a_masked_language_model_with_a_random_collator_and_dropout(seed: int) -> Script:
    return language_model(seed, 0.1, lambda ids: torch.bernoulli(torch.full(ids.shape, 0.3)).bool())


@VALID
def a_masked_language_model_with_masks_by_numpy(seed: int) -> Script:
    return language_model(seed, 0.0, lambda ids: torch.from_numpy(np.random.random(tuple(ids.shape)) < 0.3))


@VALID
def a_masked_language_model_with_words_shuffled_by_python(seed: int) -> Script:
    """Whole words are chosen record by record, as many draws as a record has words."""

    def draw(ids: Tensor) -> Tensor:
        hidden = torch.zeros(ids.shape, dtype=torch.bool)
        for k, row in enumerate(ids):
            places = row.nonzero().flatten().tolist()
            random.shuffle(places)
            hidden[k, places[: 1 + len(places) // 4]] = True
        return hidden

    return language_model(seed, 0.0, draw)


@VALID
def left_padding_with_a_mask_and_dropout(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        ids, y = padded([(ids.flip(0), y) for ids, y in records])
        return ids.flip(1), y

    def run(m: Any, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        return m.head((m.drop(m.words(ids)) * there).sum(1) / there.sum(1))

    model = Net(run, words=nn.Embedding(WORDS, 8), head=nn.Linear(8, CLASSES), drop=nn.Dropout(0.2))
    return Script(model, cross_entropy, Listed(sentences(seed, rare=20)), collate)


@VALID
def noise_on_words_with_a_mask(seed: int) -> Script:
    def run(m: Any, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        h = m.words(ids)
        return m.head(((h + 0.1 * torch.randn_like(h)) * there).sum(1) / there.sum(1))

    model = Net(run, words=nn.Embedding(WORDS, 8), head=nn.Linear(8, CLASSES))
    return Script(model, cross_entropy, Listed(sentences(seed, rare=20)), padded)


@VALID
def noise_only_where_there_are_words(seed: int) -> Script:
    """As many numbers are drawn as there are words in the batch."""

    def run(m: Any, ids: Tensor) -> Tensor:
        there = ids > 0
        h = m.words(ids)
        noise = torch.zeros_like(h)
        noise[there] = 0.1 * torch.randn(int(there.sum()), h.shape[2])
        return m.head(((h + noise) * there.unsqueeze(2)).sum(1) / there.sum(1, keepdim=True))

    model = Net(run, words=nn.Embedding(WORDS, 8), head=nn.Linear(8, CLASSES))
    return Script(model, cross_entropy, Listed(sentences(seed, rare=20)), padded)


@VALID
def bfloat16_with_a_padding_mask(seed: int) -> Script:
    def run(m: Any, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        h = m.inner(m.words(ids)).tanh() * there
        return m.head(h.sum(1) / there.sum(1))

    model = Net(run, words=nn.Embedding(WORDS, 8), inner=nn.Linear(8, 8), head=nn.Linear(8, CLASSES))
    return Script(model.bfloat16(), cross_entropy, Listed(sentences(seed, rare=20)), padded)


@VALID
def autocast_in_the_loss_with_a_padding_mask(seed: int) -> Script:
    def run(m: Any, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        return m.head((m.inner(m.words(ids)).tanh() * there).sum(1) / there.sum(1))

    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return cross_entropy(model, ids, y)

    model = Net(run, words=nn.Embedding(WORDS, 8), inner=nn.Linear(8, 8), head=nn.Linear(8, CLASSES))
    return Script(model, loss, Listed(sentences(seed, rare=20)), padded)


@VALID
def texts_as_strings_with_a_mask(seed: int) -> Script:
    data = Listed([{"text": " ".join(str(int(k)) for k in ids), "y": y} for ids, y in sentences(seed, rare=20)])

    def collate(records: list[dict[str, Any]]) -> Any:
        return padded([(torch.tensor([int(word) for word in r["text"].split()][:30]), r["y"]) for r in records])

    def run(m: Any, ids: Tensor) -> Tensor:
        there = (ids > 0).unsqueeze(2)
        return m.head((m.words(ids) * there).sum(1) / there.sum(1))

    model = Net(run, words=nn.Embedding(WORDS, 8), head=nn.Linear(8, CLASSES))
    return Script(model, cross_entropy, data, collate)


@VALID
def a_dataset_with_a_generator_of_its_own(seed: int) -> Script:
    class Augmented(torch.utils.data.Dataset[Any]):
        def __init__(self) -> None:
            self.inner, self.own = vectors(seed), np.random.default_rng(seed)

        def __len__(self) -> int:
            return len(self.inner)

        def __getitem__(self, i: int) -> Any:
            x, y = self.inner[i]
            return x + torch.from_numpy(0.3 * self.own.standard_normal(INPUTS)).float(), y

    return Script(network(), cross_entropy, Augmented(), default_collate)
