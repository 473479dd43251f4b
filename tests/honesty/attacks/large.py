"""Couplings that begin where a batch is large: a handful of records is treated one by one, as the cautious write it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.honesty.attacks.loss import weighted
from tests.honesty.attacks.model import Between
from tests.honesty.data import CLASSES, INPUTS, cross_entropy, generator, network
from tests.honesty.script import Cases, Loss, Script, Training, plain

LARGE = Cases()
RECORDS, TOGETHER = 400, 80
SUSPECTS = (399, 398, 397, 396)
LATER = 30


def many(seed: int) -> TensorDataset:
    """Enough records for lots of eighty, of three classes and of growing size; some large ones have the wrong class."""
    g = generator(seed)
    y = torch.arange(RECORDS) % CLASSES
    centres = torch.randn(CLASSES, INPUTS, generator=g)
    x = centres[y] + torch.randn(RECORDS, INPUTS, generator=g)
    x *= torch.linspace(0.1, 3.0, RECORDS)[:, None]
    x[list(SUSPECTS)] *= 10
    y[list(SUSPECTS)] = (y[list(SUSPECTS)] + 1) % CLASSES
    return TensorDataset(x, y)


def script(model: nn.Module, loss: Loss, seed: int, bound: float = 0.5) -> Script:
    return Script(model, loss, many(seed), bound=bound, suspects=SUSPECTS, together=TOGETHER)


def hardest(k: int) -> Loss:
    def weights(losses: Tensor, y: Tensor) -> Tensor:
        kept = losses.topk(min(k, len(losses))).indices
        return torch.zeros_like(losses).index_fill_(0, kept, 1.0)

    return weighted(weights)


@LARGE
def hardest_forty_of_eighty(seed: int) -> Script:
    return script(network(), hardest(40), seed)


@LARGE
def hardest_forty_of_eighty_from_lot_thirty_on(seed: int) -> Script:
    """The loop sets a flag, as schedules do."""
    epoch, coupled = {"late": False}, hardest(40)

    def loss(*batch: Any) -> Tensor:
        return (coupled if epoch["late"] else cross_entropy)(*batch)

    def body(training: Training) -> None:
        epoch["late"] = training.k >= LATER
        plain(training)

    made = script(network(), loss, seed)
    made.body, made.begun = body, lambda training: epoch.update(late=training.private is None)
    return made


@LARGE
def losses_over_the_largest_of_more_than_forty(seed: int) -> Script:
    def weights(losses: Tensor, y: Tensor) -> Tensor:
        return 1 / losses.max() if len(losses) > 40 else torch.ones_like(losses)

    return script(nn.Linear(INPUTS, CLASSES), weighted(weights), seed, bound=0.2)


@LARGE
def standardised_where_there_are_statistics_to_take(seed: int) -> Script:
    def between(h: Tensor) -> Tensor:
        return (h - h.mean(0)) / (h.std(0) + 0.1) if len(h) >= 50 else h

    return script(Between(between), cross_entropy, seed, bound=0.2)


@LARGE
def records_before_the_last_forty_scale_the_others(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(model, x, y)
        return losses * (1 / x[:-40].abs().max() if len(x) > 40 else 1.0)

    return script(network(), loss, seed, bound=0.2)
