"""Small runs of many kinds of models, as any number of ranks makes them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.distributed.process_group import Ranks
from tests.distributed.jobs import Came, came, engine

RECORDS, LOT = 40, 20


class TiedLanguageModel(nn.Module):
    """Embeddings that are the output's weights too, attention, dropout, and a layer that is used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.inner = nn.Embedding(50, 32), nn.Linear(32, 32)
        self.attention = nn.MultiheadAttention(32, 2, batch_first=True)
        self.norm, self.dropout = nn.LayerNorm(32), nn.Dropout(0.1)

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embedding(ids)
        h = self.norm(h + self.attention(h, h, h, need_weights=False)[0])
        h = self.inner(torch.relu(self.dropout(self.inner(h))))
        return nn.functional.linear(h, self.embedding.weight).mean(1)


class LastOfLSTM(nn.Module):
    """A recurrent classifier."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = (
            nn.Embedding(50, 16),
            nn.LSTM(16, 24, batch_first=True),
            nn.Linear(24, 50),
        )

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.lstm(self.embedding(ids))[0][:, -1])


class Deep(nn.Module):
    """Layers with outputs so large that they are measured during the backward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(16, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 50))

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).mean(1)


def _convolutional() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * 36, 50),
    )


def _wide() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 600), nn.Tanh(), nn.Linear(600, 600), nn.Tanh(), nn.Linear(600, 50))


def _ids(given: torch.Generator) -> Tensor:
    return torch.randint(0, 50, (RECORDS, 12), generator=given)


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[torch.Generator], Tensor], int | None]] = {
    "perceptron": (_wide, lambda given: torch.randn(RECORDS, 16, generator=given), None),
    "convolutional": (_convolutional, lambda given: torch.randn(RECORDS, 3, 16, 16, generator=given), 6),
    "recurrent": (LastOfLSTM, _ids, 6),
    "transformer, tied, a layer used twice": (TiedLanguageModel, _ids, None),
    "large outputs": (Deep, lambda given: torch.randn(RECORDS, 80, 16, generator=given), 8),
    "bfloat16": (
        lambda: _wide().bfloat16(),
        lambda given: torch.randn(RECORDS, 16, generator=given).bfloat16(),
        6,
    ),
}


def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x).float(), y, reduction="none")


def model_run(ranks: Ranks | str, name: str, threads: int = 1) -> Came:
    """Two steps of one of the models."""
    make, inputs, physical_batch = MODELS[name]
    torch.manual_seed(3)
    model, given = make(), torch.Generator().manual_seed(4)
    data = TensorDataset(inputs(given), torch.randint(0, 50, (RECORDS,), generator=given))
    torch.set_num_threads(threads)
    try:
        query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(0.5))
        private = sd.Private(model, loss, query, seed=6, mesh=ranks)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        options: dict[str, Any] = {"expected_batch": LOT, "physical_batch": physical_batch}
        for lot in private.draws(data, sd.Poisson(LOT / RECORDS), 2, **options):
            private.backward(lot)
            optimizer.step()
        return came_of(private, model)
    finally:
        torch.set_num_threads(1)


def came_of(private: sd.Private, model: nn.Module) -> Came:
    """What a run came to; numpy has no bfloat16, and float32 holds it exactly."""
    return came(private, model.float())


class Sometimes(nn.Module):
    """A layer that long batches use twice."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.inner, self.last = nn.Linear(8, 512), nn.Linear(512, 512), nn.Linear(512, 4)

    def forward(self, x: Tensor) -> Tensor:
        h = torch.relu(self.inner(torch.relu(self.first(x))))
        h = torch.relu(self.inner(h)) if x.shape[1] > 16 else h
        return self.last(h).mean(1)


def norms_and_sums(model: nn.Module, batches: list[tuple[Tensor, ...]]) -> list[Tensor]:
    """Of the last of these batches, by an engine that met the others before."""
    backend = engine()
    for batch in batches:
        torch.manual_seed(5)
        grads = backend.per_sample(model, lambda m, x: m(x).square().sum(1), batch)
        norms = grads.norms().squared
        sums = grads.weighted_sum(torch.linspace(0.1, 1, len(norms))[:, None])
    return [norms.clone(), *(tensor.clone() for tensor in sums.values())]
