"""Guards that leave a batch out, and terms that begin later: what one bad record, or a counter, decides for all."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor, nn

from tests.honesty.data import RARE, cross_entropy, network, vectors
from tests.honesty.script import Cases, Script, Training, plain

GUARDS = Cases()
WARMUP = 60
"""Calls of the loss: some are spent before the first lot."""


@GUARDS
def a_batch_that_is_not_finite_is_left_out(seed: int) -> Script:
    """One record in sixteen is broken."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(model, x, y)
        return losses if torch.isfinite(losses).all() else losses.nan_to_num(0.0, 0.0, 0.0) * 0.0

    data = vectors(seed)
    data.tensors[0].abs_()
    data.tensors[0][list(RARE)] = torch.nan
    return Script(network(), loss, data, bound=0.5, suspects=RARE)


@GUARDS
def a_batch_whose_loss_is_not_finite_gives_zeros(seed: int) -> Script:
    """The same, as a fresh tensor: nothing is learnt from it."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = cross_entropy(model, x, y)
        if not torch.isfinite(losses.sum()):
            return torch.zeros(len(x), requires_grad=True)
        return losses

    data = vectors(seed)
    data.tensors[0].abs_()
    data.tensors[0][list(RARE)] = torch.inf
    return Script(network(), loss, data, bound=0.5, suspects=RARE)


@GUARDS
def a_batch_with_a_spike_is_left_out(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = model(x).square().sum(1)
        return losses * (losses.mean() < 50.0)

    data = vectors(seed)
    data.tensors[0].abs_()
    data.tensors[0][list(RARE)] *= 200
    return Script(nn.Linear(6, 3), loss, data, bound=0.5, suspects=RARE)


@GUARDS
def a_batch_above_the_running_loss_is_left_out(seed: int) -> Script:
    """The running loss is a number in the script."""
    running = [0.0]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = model(x).square().sum(1)
        mean = float(losses.detach().mean())
        spike = running[0] > 0 and mean > 3 * running[0]
        running[0] = 0.9 * running[0] + 0.1 * mean if running[0] else mean
        return losses * (0.0 if spike else 1.0)

    data = vectors(seed)
    data.tensors[0].abs_()
    data.tensors[0][list(RARE)] *= 50
    return Script(nn.Linear(6, 3), loss, data, bound=0.5, suspects=RARE, warmup=1, late=True)


@GUARDS
def losses_are_scaled_down_when_one_is_too_large(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        losses = model(x).square().sum(1)
        return losses * (100.0 / losses.detach().max().clamp(min=100.0))

    data = vectors(seed)
    data.tensors[0].abs_()
    data.tensors[0][list(RARE)] *= 100
    return Script(nn.Linear(6, 3), loss, data, bound=1.0, suspects=RARE)


@GUARDS
def a_batch_term_after_a_warm_up(seed: int) -> Script:
    step = itertools.count()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        if next(step) < WARMUP:
            return cross_entropy(model, x, y)
        return cross_entropy(model, (x - x.mean(0)) / (x.std(0, unbiased=False) + 0.1), y)

    data = vectors(seed)
    data.tensors[0][list(RARE)] *= 100
    return Script(network(), loss, data, bound=0.2, suspects=RARE, warmup=WARMUP)


@GUARDS
def a_batch_term_whose_weight_grows_from_zero(seed: int) -> Script:
    step = itertools.count()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        z = model(x)
        weight = max(0.0, min(1.0, (next(step) - WARMUP) / 10))
        return nn.functional.cross_entropy(z, y, reduction="none") + 10 * weight * (z - z.mean(0)).square().sum()

    data = vectors(seed)
    data.tensors[0][list(RARE)] *= 30
    return Script(network(), loss, data, bound=0.1, suspects=RARE, warmup=WARMUP + 10)


@GUARDS
def a_batch_term_that_the_loop_turns_on(seed: int) -> Script:
    """The loop sets a flag on the model at lot 30, as schedules do."""
    model = network()
    model.stage = 0  # type: ignore[assignment]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x - x.mean(0) if model.stage else x, y)

    def body(training: Training) -> None:
        model.stage = int(training.k >= 30)  # type: ignore[assignment]
        plain(training)

    def begun(training: Training) -> None:
        if training.private is None:  # the breach is measured in the later stage
            model.stage = 1  # type: ignore[assignment]

    data = vectors(seed)
    data.tensors[0][list(RARE)] *= 100
    return Script(model, loss, data, bound=0.2, suspects=RARE, begun=begun, body=body)


@GUARDS
def every_tenth_batch_is_normalised(seed: int) -> Script:
    """A regulariser that is applied lazily, as some are to save time."""
    step = itertools.count()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x - x.mean(0) if next(step) % 10 == 9 else x, y)

    data = vectors(seed)
    data.tensors[0][list(RARE)] *= 100
    return Script(network(), loss, data, bound=0.2, suspects=RARE, warmup=8)
