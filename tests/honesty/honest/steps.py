"""Honest steps: every usual optimizer, schedule, closure, and what is done to released gradients for the log."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.honesty.honest.loop import _script
from tests.honesty.script import Cases, Script, Training, plain

STEPS = Cases()


@STEPS
def the_norm_of_the_released_gradient_is_logged(seed: int) -> Script:
    """clip_grad_norm_ with no limit: what a Trainer does for its log."""
    log: list[float] = []

    def body(training: Training) -> None:
        training.private.backward(training.lot)
        log.append(float(nn.utils.clip_grad_norm_(training.model.parameters(), float("inf"))))
        training.optimizer.step()

    return _script(seed, body)


@STEPS
def the_norm_of_the_released_gradient_is_logged_by_get_total_norm(seed: int) -> Script:
    log: list[float] = []

    def body(training: Training) -> None:
        training.private.backward(training.lot)
        log.append(float(nn.utils.get_total_norm([p.grad for p in training.model.parameters()])))
        training.optimizer.step()

    return _script(seed, body)


@STEPS
def released_gradients_are_clipped_as_post_processing(seed: int) -> Script:
    def body(training: Training) -> None:
        training.private.backward(training.lot)
        with training.private.post_processing("the released gradient is clipped"):
            nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
        training.optimizer.step()

    return _script(seed, body)


@STEPS
def a_closure_as_lightning_passes_it(seed: int) -> Script:
    def body(training: Training) -> None:
        def closure() -> None:
            training.private.backward(training.lot)

        training.optimizer.step(closure)

    return _script(seed, body)


@STEPS
def a_closure_by_keyword_that_returns_a_number(seed: int) -> Script:
    def body(training: Training) -> None:
        def closure() -> float:
            training.optimizer.zero_grad()
            training.private.backward(training.lot)
            return 0.0

        training.optimizer.step(closure=closure)

    return _script(seed, body)


OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "momentum": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, nesterov=True),
    "decay": lambda p: torch.optim.SGD(p, lr=0.05, weight_decay=0.01),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01),
    "adamw foreach": lambda p: torch.optim.AdamW(p, lr=0.01, foreach=True),
    "adamw fused": lambda p: torch.optim.AdamW(p, lr=0.01, fused=True),
    "rmsprop": lambda p: torch.optim.RMSprop(p, lr=0.01),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05),
}
for _name, _optimizer in OPTIMIZERS.items():

    def _build(seed: int, optimizer: Callable[[Any], torch.optim.Optimizer] = _optimizer) -> Script:
        return _script(seed, optimizer=lambda model: optimizer(model.parameters()))

    _build.__name__ = f"optimizer {_name}"
    STEPS(_build)


@STEPS
def a_schedule_of_the_learning_rate(seed: int) -> Script:
    kept: list[Any] = []

    def body(training: Training) -> None:
        if not kept:
            kept.append(torch.optim.lr_scheduler.CosineAnnealingLR(training.optimizer, 100))
        plain(training)
        kept[0].step()

    return _script(seed, body)


@STEPS
def two_optimizers_for_two_groups(seed: int) -> Script:
    kept: list[torch.optim.Optimizer] = []

    def body(training: Training) -> None:
        if not kept:
            kept.extend(torch.optim.SGD(training.model[i].parameters(), lr=0.05) for i in (0, 2))
        training.private.backward(training.lot)
        for optimizer in kept:
            optimizer.step()
            optimizer.zero_grad()

    return _script(seed, body)
