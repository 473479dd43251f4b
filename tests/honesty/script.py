"""A stranger's training script as an object, and the verdict on it: refused, void or claimed.

A script is what a user brings: model, loss, data, collate, and what the loop does. It is run by the public interface
alone. An `Attack` is a script by which one record moves the sum by more than the bound; it must not end in a claim. An
honest script must never end in anything else.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

import sordino as sd
from sordino.queries import Query
from sordino.sampling import Sampler

Verdict = Literal["refused", "void", "claimed"]
Loss = Callable[..., Tensor]
DELTA = 1e-5
LOTS = 100


@dataclass
class Training:
    """What the body of a loop sees."""

    script: Script
    private: sd.Private
    optimizer: torch.optim.Optimizer
    k: int = -1
    lot: sd.Lot | None = None

    @property
    def model(self) -> nn.Module:
        return self.script.model


def plain(training: Training) -> None:
    """The loop of the README."""
    training.private.backward(training.lot)
    training.optimizer.step()


def nothing(training: Training) -> None:
    """Nothing is done."""


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


@dataclass
class Script:
    """One run, not begun. The last fields, from `suspects` on, say how its breach is found, see `breach`."""

    model: nn.Module
    loss: Loss
    dataset: Any
    collate: Callable[[list[Any]], Any] | None = None
    sampler: Sampler = field(default_factory=lambda: sd.Poisson(0.2))
    bound: float = 1.0
    query: Query | None = None
    physical_batch: int | None = None
    optimizer: Callable[[nn.Module], torch.optim.Optimizer] = sgd
    options: dict[str, Any] = field(default_factory=dict)  # of Private
    begun: Callable[[Training], None] = nothing  # after draws(), before the first lot
    body: Callable[[Training], None] = plain
    ended: Callable[[Training], None] = nothing  # before the claim
    suspects: tuple[int, ...] = ()  # records that are looked at first
    together: int = 12  # records of a batch in which the breach is looked for
    warmup: int = 0  # lots before the fault shows
    late: bool = False  # the records looked at come after the warm-up
    exchanged: bool = False  # a record is replaced and not removed: where random numbers go by position
    attributed: bool = False  # what a record contributes is what the summed loss's backward pass leaves in its row

    def run(self, lots: int = LOTS, seed: int = 0) -> sd.Claim:
        """Train, and say what can be said."""
        query = self.query or sd.NoisySum(sd.Flat(self.bound), sd.Gaussian(1.0))
        private = sd.Private(self.model, self.loss, query, seed=seed, **self.options)
        training = Training(self, private, self.optimizer(self.model))
        drawn = private.draws(
            self.dataset, self.sampler, steps=lots, collate=self.collate, physical_batch=self.physical_batch
        )
        self.begun(training)
        for k, lot in enumerate(drawn):
            training.k, training.lot = k, lot
            self.body(training)
        self.ended(training)
        return private.claim(DELTA)


Build = Callable[[int], Script]


@dataclass(frozen=True)
class Case:
    """A named builder of scripts; `seed` is for data and weights."""

    name: str
    build: Build
    moves: bool = True
    """False where the breach is not one of a lot's sum, and a test of its own shows it."""

    def __str__(self) -> str:
        return self.name


class Cases(list[Case]):
    """Cases of one kind, filled by decorating their builders."""

    def __call__(self, build: Build) -> Build:
        self.append(Case(build.__name__.replace("_", " "), build))
        return build

    def unmeasured(self, build: Build) -> Build:
        """For a script whose breach is not one of a lot's sum."""
        self.append(Case(build.__name__.replace("_", " "), build, moves=False))
        return build


def outcome(case: Case, seed: int, lots: int = LOTS) -> tuple[Verdict, str]:
    """How the script ends, and in which words."""
    torch.manual_seed(seed)
    script = case.build(seed)
    try:
        claim = script.run(lots, seed)
    except (sd.Refusal, TypeError) as refusal:
        if not isinstance(refusal, sd.Refusal) and not _by_the_library(refusal):
            raise
        return "refused", str(refusal)
    return ("void" if isinstance(claim, sd.NoGuarantee) else "claimed"), str(claim)


def _by_the_library(error: BaseException) -> bool:
    """Was it raised by a line of the library's own? A stranger's mistake is not a refusal."""
    last = traceback.extract_tb(error.__traceback__)[-1]
    return Path(last.filename).is_relative_to(Path(sd.__file__).parent)


def verdict(case: Case, seed: int, lots: int = LOTS) -> Verdict:
    """How the script ends."""
    return outcome(case, seed, lots)[0]
