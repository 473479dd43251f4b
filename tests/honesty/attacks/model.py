"""Models that let records of a batch see each other in the forward pass, spelled without a layer that is known for it."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from tests.honesty.data import CLASSES, INPUTS, RARE, N, cross_entropy, generator, network, vectors
from tests.honesty.script import Cases, Script

MODEL = Cases()


def far(seed: int) -> TensorDataset:
    """Points, one in sixteen of them far away."""
    data = vectors(seed)
    data.tensors[0][list(RARE)] *= 100
    return data


class Between(nn.Module):
    """A network with a function of the whole batch between its layers."""

    def __init__(self, function: Callable[[Tensor], Tensor], hidden: int = 8) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(INPUTS, hidden), nn.Linear(hidden, CLASSES)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x)))


def _between(seed: int, function: Callable[[Tensor], Tensor], bound: float = 0.2) -> Script:
    return Script(Between(function), cross_entropy, far(seed), bound=bound, suspects=RARE)


def standardised(h: Tensor) -> Tensor:
    return (h - h.mean(0)) / (h.var(0, unbiased=False) + 1e-5).sqrt()


@MODEL
def batch_norm_by_hand(seed: int) -> Script:
    return _between(seed, standardised)


@MODEL
def batch_norm_by_hand_of_large_batches(seed: int) -> Script:
    """Small batches have no statistics worth taking."""
    return _between(seed, lambda h: standardised(h) if len(h) > 4 else h)


@MODEL
def functional_batch_norm(seed: int) -> Script:
    return _between(seed, lambda h: F.batch_norm(h, None, None, training=len(h) > 3) if len(h) > 3 else h)


@MODEL
def normalisation_along_the_wrong_dimension(seed: int) -> Script:
    """F.normalize(h, dim=0) for dim=1."""
    return _between(seed, lambda h: F.normalize(h, dim=0))


@MODEL
def softmax_along_the_wrong_dimension(seed: int) -> Script:
    return _between(seed, lambda h: h * h.softmax(0) if len(h) > 3 else h, bound=0.1)


@MODEL
def activations_over_the_largest_of_the_batch(seed: int) -> Script:
    """A scale for quantisation, from the batch; below 4 it is not needed."""
    return _between(seed, lambda h: h * (4.0 / h.detach().abs().max().clamp(min=4.0)))


@MODEL
def rounding_on_the_grid_of_the_batch(seed: int) -> Script:
    """Quantised training: one scale for the batch, gradients straight through."""

    def quantised(h: Tensor) -> Tensor:
        scale = (h.detach().abs().max() / 7).clamp(min=0.5)
        return h + ((h / scale).round() * scale - h).detach()

    return _between(seed, quantised)


@MODEL
def activations_below_the_batch_mean_are_cut(seed: int) -> Script:
    return _between(seed, lambda h: h * (h >= h.mean(0)).float() if len(h) >= 4 else h)


@MODEL
def attention_over_the_batch(seed: int) -> Script:
    """nn.MultiheadAttention without batch_first, given (B, T, d): each record attends to the others."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.attention = nn.Linear(1, 8), nn.MultiheadAttention(8, 2)
            self.last = nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x.unsqueeze(2))  # (B, T, 8)
            return self.last(self.attention(h, h, h)[0].mean(1))

    return Script(Net(), cross_entropy, far(seed), bound=0.1, suspects=RARE)


@MODEL
def recurrence_over_the_batch(seed: int) -> Script:
    """nn.GRU without batch_first, given (B, T, d): each record is the past of the next."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gru, self.last = nn.GRU(1, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(self.gru(x.unsqueeze(2))[0].mean(1))

    return Script(Net(), cross_entropy, far(seed), bound=0.05, suspects=RARE)


class Routed(nn.Module):
    """Two experts; each takes so many records of a batch, and who comes later passes by."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.gate = nn.Linear(INPUTS, 2)
        self.experts = nn.ModuleList([nn.Linear(INPUTS, CLASSES) for _ in range(2)])
        self.least = least

    def forward(self, x: Tensor) -> Tensor:
        score = self.gate(x).softmax(1)
        chosen = score.argmax(1)
        capacity = max(self.least, math.ceil(0.6 * len(x) / 2))
        out = 0
        for k, expert in enumerate(self.experts):
            mine = chosen == k
            kept = mine & (self.order(mine, score[:, k]) < capacity)
            out = out + expert(x) * (score[:, k] * kept)[:, None]
        return out

    def order(self, mine: Tensor, score: Tensor) -> Tensor:
        return mine.cumsum(0) - 1


class RoutedByScore(Routed):
    """The best keep their place."""

    def order(self, mine: Tensor, score: Tensor) -> Tensor:
        return (mine[None] & (score[None] > score[:, None])).sum(1)


def crowd(seed: int) -> TensorDataset:
    """Most choose one expert."""
    g = generator(seed)
    x = 1 + 0.7 * torch.randn(N, INPUTS, generator=g)
    return TensorDataset(x, torch.randint(CLASSES, (N,), generator=g))


@MODEL
def capacity_limited_routing(seed: int) -> Script:
    return Script(Routed(least=4), cross_entropy, crowd(seed), bound=0.3)


@MODEL
def capacity_limited_routing_by_score(seed: int) -> Script:
    """Capacity is a share of the batch: one record fewer may close two places."""
    return Script(RoutedByScore(least=4), cross_entropy, crowd(seed), bound=0.3)


@MODEL
def experts_with_a_balance_term(seed: int) -> Script:
    """The load of the experts over the batch is in every record's loss, once it can be estimated."""
    model = Routed(least=99)

    def loss(model: Routed, x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(model, x, y)
        if len(x) < 4:
            return losses
        return losses + 4 * model.gate(x).softmax(1).mean(0).square().sum()

    return Script(model, loss, far(seed), bound=0.05, suspects=RARE)


@MODEL
def a_prototype_is_the_mean_of_its_class_in_the_batch(seed: int) -> Script:
    """Prototypical networks: distances to class means of the batch itself. The first three records are of one class."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = model(x)
        there = y.unique()
        if len(there) < 2:
            return z.square().sum(1)
        centres = torch.stack([z[y == k].mean(0) for k in there])
        return F.cross_entropy(-torch.cdist(z, centres), (y[:, None] == there).float().argmax(1), reduction="none")

    data = vectors(seed, by_class=True)
    data.tensors[0][list(RARE)] *= 30
    return Script(network(), loss, data, bound=0.1, suspects=RARE)


@MODEL
def the_mask_is_that_of_the_longest(seed: int) -> Script:
    """A mask reduced over the batch: positions that any record uses."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.last = nn.Linear(INPUTS, CLASSES)
            self.free = nn.Parameter(torch.randn(INPUTS))

        def forward(self, x: Tensor) -> Tensor:
            used = (x != 0).any(0)
            return self.last(x + self.free * used)

    data = vectors(seed)
    data.tensors[0][:, 2:] = 0
    data.tensors[0][list(RARE), 2:] = 1.0
    return Script(Net(), cross_entropy, data, bound=0.2, suspects=RARE)
