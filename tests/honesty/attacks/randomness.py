"""Mixing that is hidden by randomness: a loss that differs from itself has not been shown to be one per record."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.honesty.data import CLASSES, INPUTS, cross_entropy, network, vectors
from tests.honesty.script import Cases, Script

RANDOM = Cases()
Order = Callable[[int], Any]

ORDERS: dict[str, Order] = {
    "numpy": lambda n: torch.from_numpy(np.random.permutation(n)),
    "python": lambda n: random.sample(range(n), n),
    "torch": torch.randperm,
}
SHARES: dict[str, Callable[[], float]] = {
    "numpy": lambda: float(np.random.beta(1.0, 1.0)),
    "python": lambda: random.betavariate(1.0, 1.0),
    "torch": lambda: float(torch.rand(())),
}


def mixing(order: Order, share: Callable[[], float], *, always: bool = False) -> Callable[..., Tensor]:
    """Mixup in the loss, in training mode only."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        target = F.one_hot(y, CLASSES).float()
        if model.training or always:
            lam, other = share(), order(len(x))
            x, target = lam * x + (1 - lam) * x[other], lam * target + (1 - lam) * target[other]
        return F.cross_entropy(model(x), target, reduction="none")

    return loss


for _source, _order in ORDERS.items():

    def _mixup(seed: int, source: str = _source, order: Order = _order) -> Script:
        return Script(network(), mixing(order, SHARES[source]), vectors(seed), bound=0.2, exchanged=True)

    _mixup.__name__ = f"train only mixup by {_source}"
    RANDOM(_mixup)


@RANDOM
def mixup_by_a_generator_of_its_own(seed: int) -> Script:
    """numpy's newer generators are objects: no global seed reaches them."""
    own = np.random.default_rng(seed)
    loss = mixing(lambda n: torch.from_numpy(own.permutation(n)), lambda: float(own.beta(1.0, 1.0)))
    return Script(network(), loss, vectors(seed), bound=0.2, exchanged=True)


@RANDOM
def mixup_by_a_torch_generator_of_its_own(seed: int) -> Script:
    own = torch.Generator().manual_seed(seed)
    loss = mixing(lambda n: torch.randperm(n, generator=own), lambda: 0.5)
    return Script(network(), loss, vectors(seed), bound=0.2, exchanged=True)


@RANDOM.unmeasured  # two worlds cannot be given the same random numbers; it mixes as the ones above do
def mixup_by_the_operating_system(seed: int) -> Script:
    own = random.SystemRandom()
    loss = mixing(lambda n: own.sample(range(n), n), lambda: 0.5)
    return Script(network(), loss, vectors(seed), bound=0.2, exchanged=True)


@RANDOM
def mixup_now_and_then(seed: int) -> Script:
    """One batch in five."""
    mixed = mixing(ORDERS["python"], lambda: 0.5)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return mixed(model, x, y) if random.random() < 0.2 else cross_entropy(model, x, y)

    return Script(network(), loss, vectors(seed), bound=0.2, exchanged=True, warmup=12)


@RANDOM
def hidden_layers_are_centred_at_two_others_beside_dropout(seed: int) -> Script:
    """Two records of the batch are the centre, in a network with dropout, whose masks make every two passes differ."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.drop, self.last = nn.Linear(INPUTS, 8), nn.Dropout(0.2), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            h = self.drop(self.first(x).tanh())
            if self.training:
                h = h - h[np.random.permutation(len(h))[:2]].mean(0)
            return self.last(h)

    return Script(Net(), cross_entropy, vectors(seed), bound=0.1, exchanged=True)


@RANDOM
def in_batch_negatives_at_random(seed: int) -> Script:
    """A ranking loss against whoever numpy picks from the batch."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = model(x)
        return F.softplus((z[np.random.randint(len(x))] * z).sum(1))

    return Script(network(), loss, vectors(seed), bound=0.1, exchanged=True)


@RANDOM
def shake_with_statistics_of_the_batch(seed: int) -> Script:
    """Noise in proportion to the spread of the batch, by numpy."""

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = network()

        def forward(self, x: Tensor) -> Tensor:
            if self.training:
                x = x + x.std(0, unbiased=False) * torch.from_numpy(np.random.randn(*x.shape)).float()
            return self.net(x)

    data = vectors(seed)
    data.tensors[0][::16] *= 100
    return Script(Net(), cross_entropy, data, bound=0.1, exchanged=True, suspects=(0, 16, 32, 48))
