"""Honest randomness: every record draws for itself, or a coin that knows no record is thrown for all."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import Dataset, default_collate

from tests.honesty.data import CLASSES, INPUTS, cross_entropy, network, vectors
from tests.honesty.honest.layers import Net, pictures
from tests.honesty.script import Cases, Script, Training

CHANCE = Cases()


def _vectors(seed: int, model: nn.Module, loss: Any = cross_entropy) -> Script:
    return Script(model, loss, vectors(seed))


@CHANCE
def dropout_modules(seed: int) -> Script:
    return _vectors(seed, nn.Sequential(nn.Linear(INPUTS, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, CLASSES)))


@CHANCE
def functional_dropout(seed: int) -> Script:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.last(F.dropout(m.first(x).tanh(), 0.5, m.training))

    return _vectors(seed, Net(run, first=nn.Linear(INPUTS, 8), last=nn.Linear(8, CLASSES)))


@CHANCE
def dropout_that_is_always_on(seed: int) -> Script:
    """Monte Carlo dropout: F.dropout with training=True by default."""

    def run(m: Any, x: Tensor) -> Tensor:
        return m.last(F.dropout(m.first(x).tanh(), 0.5))

    return _vectors(seed, Net(run, first=nn.Linear(INPUTS, 8), last=nn.Linear(8, CLASSES)))


@CHANCE
def dropout_inside_an_own_leaf(seed: int) -> Script:
    class Leaf(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, INPUTS) * 0.3)

        def forward(self, x: Tensor) -> Tensor:
            return F.dropout(F.linear(x, self.weight), 0.3, self.training)

    return _vectors(seed, nn.Sequential(Leaf(), nn.Tanh(), nn.Linear(8, CLASSES)))


@CHANCE
def lstm_with_dropout_between_layers(seed: int) -> Script:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.head(m.lstm(x.unsqueeze(2))[0][:, -1])

    return _vectors(seed, Net(run, lstm=nn.LSTM(1, 6, 2, batch_first=True, dropout=0.3), head=nn.Linear(6, CLASSES)))


def _depth(by_record: bool) -> Any:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x).tanh()
        branch = m.inner(h)
        if m.training:
            shape = (len(x), 1) if by_record else (1, 1)
            branch = branch * torch.empty(shape).bernoulli_(0.7) / 0.7
        return m.last(h + branch)

    return Net(run, first=nn.Linear(INPUTS, 8), inner=nn.Linear(8, 8), last=nn.Linear(8, CLASSES))


@CHANCE
def stochastic_depth_by_record(seed: int) -> Script:
    return _vectors(seed, _depth(True))


@CHANCE
def stochastic_depth_by_batch(seed: int) -> Script:
    return _vectors(seed, _depth(False))


@CHANCE
def stochastic_depth_by_pythons_coin(seed: int) -> Script:
    def run(m: Any, x: Tensor) -> Tensor:
        h = m.first(x).tanh()
        return m.last(h if m.training and random.random() < 0.3 else h + m.inner(h))

    return _vectors(seed, Net(run, first=nn.Linear(INPUTS, 8), inner=nn.Linear(8, 8), last=nn.Linear(8, CLASSES)))


@CHANCE
def a_variational_autoencoder(seed: int) -> Script:
    def loss(model: Any, x: Tensor, y: Tensor) -> Tensor:
        mean, spread = model.first(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (spread / 2).exp()
        divergence = 0.5 * (mean.square() + spread.exp() - 1 - spread).sum(1)
        return (model.last(z) - x).square().sum(1) + divergence

    model = Net(lambda m, x: m.last(m.first(x)[:, :3]), first=nn.Linear(INPUTS, 6), last=nn.Linear(3, INPUTS))
    return _vectors(seed, model, loss)


@CHANCE
def diffusion(seed: int) -> Script:
    """A noise level for every record, and the noise itself."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        t = torch.rand(len(x), 1)
        noise = torch.randn_like(x)
        return (model(torch.cat([(1 - t).sqrt() * x + t.sqrt() * noise, t], 1)) - noise).square().sum(1)

    return _vectors(seed, network(inputs=INPUTS + 1, outputs=INPUTS), loss)


@CHANCE
def random_flips_in_the_forward_pass(seed: int) -> Script:
    def run(m: Any, x: Tensor) -> Tensor:
        if m.training:
            x = torch.where(torch.rand(len(x), 1, 1, 1) < 0.5, x.flip(3), x)
        return m.net(x)

    net = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(144, CLASSES))
    return Script(Net(run, net=net), cross_entropy, pictures(seed))


@CHANCE
def noise_on_the_inputs_by_numpy(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x + torch.from_numpy(0.3 * np.random.randn(*x.shape)).float(), y)

    return _vectors(seed, network(), loss)


@CHANCE
def a_sign_by_python_for_every_record(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        sign = torch.tensor([[random.choice((-1.0, 1.0))] for _ in range(len(x))])
        return cross_entropy(model, x * sign, y)

    return _vectors(seed, network(), loss)


@CHANCE
def masked_words_by_torch(seed: int) -> Script:
    """BERT's task: which words are hidden is drawn in the loss."""
    from tests.honesty.data import WORDS
    from tests.honesty.honest.layers import words

    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        hidden = torch.rand(ids.shape) < 0.3
        each = F.cross_entropy(model(ids.masked_fill(hidden, 0)).transpose(1, 2), ids, reduction="none")
        return (each * hidden).sum(1) / ids.shape[1]

    return Script(nn.Sequential(nn.Embedding(WORDS, 6), nn.Linear(6, WORDS)), loss, words(seed))


class Augmented(Dataset[Any]):
    """Records that are changed at random as they are read, each on its own."""

    def __init__(self, seed: int, source: str) -> None:
        self.inner, self.source = vectors(seed), source

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> Any:
        x, y = self.inner[i]
        if self.source == "numpy":
            return x * float(np.random.choice([-1.0, 1.0])), y
        if self.source == "python":
            return x + random.gauss(0.0, 0.3), y
        return x + 0.3 * torch.randn(INPUTS), y


@CHANCE
def a_dataset_that_augments_by_torch(seed: int) -> Script:
    return Script(network(), cross_entropy, Augmented(seed, "torch"))


@CHANCE
def a_dataset_that_augments_by_numpy(seed: int) -> Script:
    return Script(network(), cross_entropy, Augmented(seed, "numpy"))


@CHANCE
def a_dataset_that_augments_by_python(seed: int) -> Script:
    return Script(network(), cross_entropy, Augmented(seed, "python"))


@CHANCE
def a_collate_that_augments_each_record(seed: int) -> Script:
    def collate(records: list[Any]) -> Any:
        x, y = default_collate(records)
        return x + 0.1 * torch.randn_like(x), y

    return Script(network(), cross_entropy, vectors(seed), collate)


@CHANCE
def gumbel_softmax_and_straight_through(seed: int) -> Script:
    def run(m: Any, x: Tensor) -> Tensor:
        return m.last(F.gumbel_softmax(m.first(x), hard=True, dim=1))

    return _vectors(seed, Net(run, first=nn.Linear(INPUTS, 5), last=nn.Linear(5, CLASSES)))


@CHANCE
def modes_that_change_between_lots(seed: int) -> Script:
    script = _vectors(seed, nn.Sequential(nn.Linear(INPUTS, 8), nn.Dropout(0.5), nn.Tanh(), nn.Linear(8, CLASSES)))

    def body(training: Training) -> None:
        training.model.train(training.k % 3 == 0)
        training.private.backward(training.lot)
        training.optimizer.step()
        training.model.eval()
        with torch.no_grad():
            training.model(torch.zeros(2, INPUTS))

    script.body = body
    return script
