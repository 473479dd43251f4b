"""Canaries: records that are in the training set by a fair coin each, made to be noticed.

    gradient      its gradient is one coordinate of its own, far longer than any bound: the worst record there is. Its loss
                  is `LENGTH` times a number of its own beside the model, so it goes all the way from backend to release
    noise         an input of nothing but noise, with a random class
    mislabelled   a public test record, with a wrong class

A gradient canary shows what noise, sampling and accounting allow at most; the others what an input can do.

Privacy: canaries are nobody's records. Coins are independent and fair, so the theorems hold whatever else is trained on.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.per_sample.protocol import LossFn
from sordino.rng.streams import Rng

Kind = Literal["gradient", "noise", "mislabelled"]
KINDS: tuple[Kind, ...] = ("gradient", "noise", "mislabelled")

LENGTH = 1e3
"""The length of a gradient canary, before it is clipped."""


class ModelWithCanaryNumbers(nn.Module):
    """A model with a number beside it for every gradient canary; the last, for everybody else, is never used."""

    def __init__(self, model: nn.Module, canaries: int) -> None:
        super().__init__()
        self.model, self.nobody = model, canaries
        # The row of `padding_idx` gets no gradient, so ordinary records move none of the numbers.
        self.numbers = nn.Embedding(canaries + 1, 1, padding_idx=canaries)
        nn.init.zeros_(self.numbers.weight)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the model's own output."""
        out: Tensor = self.model(x)
        return out


def make_canary_loss(loss_fn: LossFn) -> LossFn:
    """Returns the loss of a batch with canaries, in which a gradient canary is told by its number, the third entry of a
    record.
    """

    def loss(model: nn.Module, x: Tensor, y: Tensor, number: Tensor) -> Tensor:
        """Returns the losses of a batch in which canaries are told by number: the loss of a gradient canary is linear
        in a parameter that only the canary has.
        """
        assert isinstance(model, ModelWithCanaryNumbers)
        # An ordinary record has its own loss; a gradient canary has a loss that is linear in one number of its own.
        everybody: Tensor = loss_fn(model.model, x, y)
        own_number: Tensor = model.numbers(number.clamp(max=model.nobody)).reshape(-1)
        losses = torch.where(number == model.nobody, everybody, LENGTH * own_number)
        # A canary that is left out, but keeps its place, adds nothing.
        return torch.where(number > model.nobody, torch.zeros_like(losses), losses)

    return loss


@dataclass(frozen=True, eq=False)
class Canaries:
    """Canaries of the kinds asked for, so many of each, and who is in."""

    x: Tensor
    y: Tensor
    number: Tensor  # of gradient canaries; the others have `each`
    kind: tuple[Kind, ...]
    inside: NDArray[np.bool_]
    each: int

    def add_to_dataset(self, train: TensorDataset, *, keep_places: bool = False) -> TensorDataset:
        """Returns the training set, with nobody's number on every record, and the canaries whose coin came up heads
        added to it.

        With `keep_places`, canaries whose coin came up tails are there too, and contribute nothing: that is the neighbour
        of a claim about one record's contribution replaced by nothing, where removing a record would move all others.
        """
        # Canaries whose coin came up tails are held out, to be guessed at as well.
        x, y = train.tensors
        inside = torch.from_numpy(self.inside)
        chosen = torch.arange(len(inside)) if keep_places else inside.nonzero().reshape(-1)
        number = torch.where(inside, self.number, torch.full_like(self.number, self.each + 1))
        nobody = torch.full((len(x),), self.each, dtype=torch.long)
        return TensorDataset(
            torch.cat([x, self.x[chosen].to(x.dtype)]),
            torch.cat([y, self.y[chosen]]),
            torch.cat([nobody, number[chosen]]),
        )

    def places_of(self, kind: Kind) -> NDArray[np.int64]:
        """Returns the places of one kind."""
        return np.flatnonzero(np.array(self.kind) == kind)


def make_canaries(kinds: tuple[Kind, ...], each: int, test: TensorDataset, classes: int, rng: Rng) -> Canaries:
    """Returns `each` canaries of every kind for an audit, made from public records and coins alone."""
    pool, labels = test.tensors
    parts: list[tuple[Tensor, Tensor, Tensor]] = []
    for kind in kinds:
        # Public records are the material; each kind changes another part of them.
        chosen = (
            torch.from_numpy(rng.permutation(len(pool))[:each]) if len(pool) >= each else torch.arange(each) % len(pool)
        )
        x, y = pool[chosen].float(), labels[chosen].clone()
        number = torch.full((each,), each, dtype=torch.long)
        if kind == "gradient":
            number = torch.arange(each)
        elif kind == "noise":
            x = rng.normal(x.numel()).view_as(x)
            y = torch.from_numpy(rng.integers(each, classes))
        else:
            # A shift by 1 to classes − 1 never leads back to the right class.
            y = (y + 1 + torch.from_numpy(rng.integers(each, classes - 1))) % classes
        parts.append((x, y, number))
    x, y, number = (torch.cat(columns) for columns in zip(*parts, strict=True))
    # Every canary gets a fair coin of its own, as the theorems ask.
    named = tuple(kind for kind in kinds for _ in range(each))
    return Canaries(x, y, number, named, rng.uniform(len(named)) < 0.5, each)
