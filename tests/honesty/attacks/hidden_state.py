"""Forward passes and losses that remember earlier records where no buffer shows it, and models that learn at once.

A record that was in an earlier lot moves the sums of later ones, in which it need not be at all.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.honesty.attacks.model import Between, far
from tests.honesty.data import CLASSES, INPUTS, RARE, cross_entropy, network, vectors
from tests.honesty.script import Cases, Script

HIDDEN = Cases()


class Whitened(nn.Module):
    """Subtracts a running mean, wherever that is kept."""

    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Sequential(nn.Linear(INPUTS, 8), nn.Tanh(), nn.Linear(8, CLASSES))
        self.prepare()

    def prepare(self) -> None:
        self.mean = torch.zeros(INPUTS)

    def update(self, x: Tensor) -> None:
        self.mean = 0.5 * self.mean + 0.5 * x.detach().mean(0)

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.update(x)
        return self.last(x - self.mean)


class InPlace(Whitened):
    def update(self, x: Tensor) -> None:
        self.mean.mul_(0.5).add_(x.detach().mean(0), alpha=0.5)


class InAFrozenParameter(Whitened):
    def prepare(self) -> None:
        self.mean = nn.Parameter(torch.zeros(INPUTS), requires_grad=False)

    def update(self, x: Tensor) -> None:
        with torch.no_grad():
            self.mean.mul_(0.5).add_(x.mean(0), alpha=0.5)


class ThroughData(InAFrozenParameter):
    """A write that no version counter sees."""

    def update(self, x: Tensor) -> None:
        self.mean.data = 0.5 * self.mean.data + 0.5 * x.detach().mean(0)


class InABuffer(Whitened):
    def prepare(self) -> None:
        self.register_buffer("mean", torch.zeros(INPUTS))


class InANumber(Whitened):
    def prepare(self) -> None:
        self.mean: Any = 0.0

    def update(self, x: Tensor) -> None:
        self.mean = 0.5 * self.mean + 0.5 * float(x.mean())


class InAListOfFloats(Whitened):
    def prepare(self) -> None:
        self.seen: list[list[float]] = []
        self.mean = torch.zeros(INPUTS)

    def update(self, x: Tensor) -> None:
        self.seen.append(x.detach().mean(0).tolist())
        self.mean = torch.tensor(self.seen[-5:]).mean(0)


class LastBatch(Whitened):
    """Whitens with the batch before."""

    def update(self, x: Tensor) -> None:
        self.before, self.next = getattr(self, "next", torch.zeros(INPUTS)), x.detach().mean(0)
        self.mean = self.before


def _whitened(seed: int, model: nn.Module) -> Script:
    return Script(model, cross_entropy, far(seed), bound=0.2, suspects=RARE, warmup=1)


for _name, _kind in {
    "a running mean in a plain tensor": Whitened,
    "a running mean in a plain tensor written in place": InPlace,
    "a running mean in a frozen parameter": InAFrozenParameter,
    "a running mean in a frozen parameter written through data": ThroughData,
    "a running mean in a buffer": InABuffer,
    "a running mean in a python float": InANumber,
    "a running mean in a list of floats": InAListOfFloats,
    "the batch before in a plain tensor": LastBatch,
}.items():

    def _build(seed: int, kind: type[nn.Module] = _kind) -> Script:
        return _whitened(seed, kind())

    _build.__name__ = _name
    HIDDEN(_build)


class ActNorm(nn.Module):
    """Scale and shift that the first batch sets (Glow, 2018)."""

    def __init__(self, done: bool = False) -> None:
        super().__init__()
        self.shift, self.scale = nn.Parameter(torch.zeros(INPUTS)), nn.Parameter(torch.ones(INPUTS))
        self.last, self.done = nn.Linear(INPUTS, CLASSES), done

    def forward(self, x: Tensor) -> Tensor:
        if not self.done:
            with torch.no_grad():
                self.shift.copy_(-x.mean(0))
                self.scale.copy_(1 / (x.std(0) + 0.1))
            self.done = True
        return self.last((x + self.shift) * self.scale)


@HIDDEN
def data_dependent_initialisation(seed: int) -> Script:
    """The parameters themselves hold statistics of private records, before the first release."""
    return Script(ActNorm(), cross_entropy, far(seed), bound=0.2, suspects=RARE, warmup=1)


@HIDDEN
def data_dependent_initialisation_through_data(seed: int) -> Script:
    class Quiet(ActNorm):
        def forward(self, x: Tensor) -> Tensor:
            if not self.done:
                self.shift.data = -x.mean(0).detach()
                self.done = True
            return self.last((x + self.shift) * self.scale)

    return Script(Quiet(), cross_entropy, far(seed), bound=0.2, suspects=RARE, warmup=1)


@HIDDEN
def data_dependent_initialisation_of_an_absent_parameter(seed: int) -> Script:
    """Weight normalisation in the manner of 2016: the parameter is given a value when the loop begins, on the first lot."""

    class Late(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last, self.calls = nn.Linear(INPUTS, 8), nn.Linear(8, CLASSES), 0

        def forward(self, x: Tensor) -> Tensor:
            self.calls += 1
            if self.calls == 20:  # statistics of a few batches are better than of one
                with torch.no_grad():
                    self.first.bias.sub_(self.first(x).mean(0))
            return self.last(self.first(x).tanh())

    return Script(Late(), cross_entropy, far(seed), bound=0.2, suspects=RARE, warmup=20)


@HIDDEN
def centre_loss_with_centres_in_a_plain_tensor(seed: int) -> Script:
    centres = torch.zeros(CLASSES, CLASSES)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = model(x)
        losses = F.cross_entropy(z, y, reduction="none") + 3 * (z - centres[y]).square().sum(1)
        for k in y.unique() if model.training else ():
            centres[k] += 0.5 * (z.detach()[y == k].mean(0) - centres[k])
        return losses

    return Script(network(), loss, far(seed), bound=0.1, suspects=RARE, warmup=1)


@HIDDEN
def a_queue_of_negatives(seed: int) -> Script:
    """MoCo's, as a plain tensor."""
    queue = [torch.zeros(16, CLASSES)]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = F.normalize(model(x), dim=1)
        losses = torch.logsumexp(z @ queue[0].T / 0.2, 1) - z[:, 0]
        if model.training:
            queue[0] = torch.cat([z.detach(), queue[0]])[:16]
        return losses

    data = vectors(seed)
    data.tensors[0][list(RARE)] *= -20
    return Script(network(), loss, data, bound=0.02, suspects=RARE, warmup=1)


@HIDDEN
def teacher_outputs_are_centred_by_a_running_mean(seed: int) -> Script:
    """DINO's centre."""
    centre = [torch.zeros(CLASSES)]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = model(x)
        target = ((z.detach() - centre[0]) / 0.1).softmax(1)
        if model.training:
            centre[0] = 0.5 * centre[0] + 0.5 * z.detach().mean(0)
        return F.cross_entropy(z, target, reduction="none")

    return Script(nn.Linear(INPUTS, CLASSES), loss, far(seed), bound=0.2, suspects=RARE, warmup=1)


@HIDDEN
def a_codebook_that_moves_with_the_records(seed: int) -> Script:
    """VQ-VAE with moving averages, the book a plain tensor."""
    book = torch.randn(4, 8, generator=torch.Generator().manual_seed(seed))

    def quantised(h: Tensor) -> Tensor:
        nearest = torch.cdist(h.detach(), book).argmin(1)
        taken = book[nearest].clone()
        for k in nearest.unique():
            book[k].lerp_(h.detach()[nearest == k].mean(0), 0.5)
        return h + (taken - h).detach()

    return Script(Between(quantised), cross_entropy, far(seed), bound=0.2, suspects=RARE, warmup=1)


@HIDDEN
def a_recurrent_state_that_is_carried_over(seed: int) -> Script:
    """Truncated back-propagation through time: the last state of a batch begins the next."""

    class Stateful(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.cell, self.last, self.state = nn.GRUCell(INPUTS, 8), nn.Linear(8, CLASSES), torch.zeros(8)

        def forward(self, x: Tensor) -> Tensor:
            h = self.cell(x, self.state.expand(len(x), -1))
            if self.training:
                self.state = 3 * h.detach().mean(0)
            return self.last(h)

    return Script(Stateful(), cross_entropy, far(seed), bound=0.02, suspects=RARE, warmup=2)


@HIDDEN
def a_loss_scale_that_follows_the_losses(seed: int) -> Script:
    """Dynamic weighting by the running loss, a number in the script."""
    running = [1.0]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = model(x).square().sum(1)
        scaled = losses / running[0]
        if model.training:
            running[0] = 0.5 * running[0] + 0.5 * float(losses.detach().mean())
        return scaled

    data = far(seed)
    data.tensors[0].abs_()
    return Script(nn.Linear(INPUTS, CLASSES), loss, data, bound=3.0, suspects=RARE, warmup=1)


@HIDDEN
def an_observer_for_quantisation(seed: int) -> Script:
    """The largest activation so far, as an attribute."""
    largest = [1.0]

    def quantised(h: Tensor) -> Tensor:
        largest[0] = max(largest[0], float(h.detach().abs().max()))
        scale = largest[0] / 7
        return h + ((h / scale).round() * scale - h).detach()

    return Script(Between(quantised), cross_entropy, far(seed), bound=0.2, suspects=RARE, warmup=1)


@HIDDEN
def losses_of_records_seen_before_decide_their_weight(seed: int) -> Script:
    """A table of losses by class: prioritised replay without the replay."""
    table = torch.ones(CLASSES)

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(model, x, y)
        weights = table[y] / table.sum()
        if model.training:
            table.scatter_(0, y, losses.detach())
        return losses * weights

    data = far(seed)
    data.tensors[0].abs_()
    data.tensors[1][:] = torch.arange(64) % 2
    data.tensors[1][list(RARE)] = 2
    return Script(nn.Linear(INPUTS, CLASSES), loss, data, bound=1.0, suspects=RARE, warmup=1)
