"""Trains a generator privately: Poisson lots, clipped gradients, Adam, and an average of the weights at the end."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

import sordino as sd
from sordino import validate
from sordino.ledger.claims import Claim
from sordino.lots.loading import MapStyle
from sordino.optim.average import Average
from sordino.per_sample.protocol import LossFn


@dataclass(frozen=True)
class TrainingPlan:
    """How a generator is trained. No number in it is made of the records, not of how many there are either."""

    epsilon: float
    delta: float = 1e-5
    rate: float = 1 / 16
    steps: int = 320
    clip: float = 1.0
    learning_rate: float = 0.01
    decay: float = 0.98
    """Of the average of the weights, which is what generates."""
    expected_batch: float | None = None
    """The public number that sums are divided by; without it the claim does not cover the number of records."""

    def __post_init__(self) -> None:
        validate.positive("epsilon", self.epsilon)
        validate.fraction("delta", self.delta)
        validate.count("steps", self.steps)


def train_privately(
    model: nn.Module,
    loss_fn: LossFn,
    dataset: MapStyle,
    plan: TrainingPlan,
    ledger: sd.Ledger,
    *,
    seed: int | None = None,
    show_step: Callable[[int], None] = lambda step: None,
) -> Claim:
    """Trains the model of a generator privately and in place, leaves the average of its weights in it, and returns the
    claim.
    """
    private = sd.Private(
        model, loss_fn, epsilon=plan.epsilon, delta=plan.delta, clip=plan.clip, ledger=ledger, seed=seed
    )
    trainable = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(trainable, lr=plan.learning_rate)
    # The rate falls to zero at the end, when steps are mostly noise.
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: max(0.05, 1 - step / plan.steps))
    average = Average(model, plan.decay)
    draws = private.draws(dataset, sd.Poisson(plan.rate), plan.steps, expected_batch=plan.expected_batch)
    for step, lot in enumerate(draws, start=1):
        private.backward(lot)
        optimizer.step()
        schedule.step()
        average.update()
        show_step(step)
    claim = private.claim(plan.delta)
    average.copy_to(model)
    return claim
