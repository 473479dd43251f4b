"""Hooks on gradients: a batch's backward pass is changed by a number of the whole batch, where no loss shows it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from tests.honesty.attacks.model import Between
from tests.honesty.data import RARE, vectors
from tests.honesty.script import Cases, Script, Training

HOOKS = Cases()


def uneven(seed: int) -> TensorDataset:
    """Points of one direction; one in sixteen has a gradient far above the others'."""
    data = vectors(seed)
    data.tensors[0].abs_()
    data.tensors[0][list(RARE)] *= 30
    return data


def length(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """A loss whose slope is as large as the record."""
    return model(x).square().sum(1)


def frozen_last(function: Callable[[Tensor], Tensor]) -> Between:
    """The layer above the hook is not trained: all that is learnt comes through it."""
    model = Between(function)
    model.last.requires_grad_(False)
    return model


def hooked(change: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The identity, with this done to the gradient on its way back."""

    def function(h: Tensor) -> Tensor:
        if h.requires_grad:
            h.register_hook(change)
        return h

    return function


def clipped(g: Tensor) -> Tensor:
    """To a norm of 10 over the batch, which ordinary records do not reach."""
    return g * (10.0 / g.norm().clamp(min=10.0))


def _hooked(seed: int, change: Callable[[Tensor], Tensor], bound: float = 1.0) -> Script:
    return Script(frozen_last(hooked(change)), length, uneven(seed), bound=bound, suspects=RARE, attributed=True)


@HOOKS
def an_activations_gradient_is_clipped_over_the_batch(seed: int) -> Script:
    return _hooked(seed, clipped)


@HOOKS
def an_activations_gradient_is_normalised_over_the_batch(seed: int) -> Script:
    return _hooked(seed, lambda g: g / g.norm() if len(g) > 3 else g)


@HOOKS
def a_reversed_gradient_is_scaled_by_its_largest_value(seed: int) -> Script:
    return _hooked(seed, lambda g: -0.1 * g / g.abs().max() if len(g) > 3 else -g)


@HOOKS
def an_activations_gradient_is_centred_over_the_batch(seed: int) -> Script:
    return _hooked(seed, lambda g: g - g.mean(0) if len(g) > 3 else g)


class Clip(torch.autograd.Function):
    """The identity forward, a norm over the batch backward."""

    @staticmethod
    def forward(ctx: object, h: Tensor) -> Tensor:
        return h.view_as(h)

    @staticmethod
    def backward(ctx: object, g: Tensor) -> Tensor:
        return clipped(g)


@HOOKS
def an_autograd_function_clips_over_the_batch(seed: int) -> Script:
    return Script(frozen_last(Clip.apply), length, uneven(seed), suspects=RARE, attributed=True)


def _later(seed: int, register: Callable[[nn.Module], object]) -> Script:
    """A plain network; the hook comes after draws()."""
    model = frozen_last(torch.relu)

    def begun(training: Training) -> None:
        register(training.model)

    return Script(model, length, uneven(seed), suspects=RARE, begun=begun, attributed=True)


def normed(_: nn.Module, g: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """To a norm of 3 over the batch."""
    return tuple(3 * x / x.norm() for x in g)


@HOOKS
def a_backward_hook_registered_after_draws(seed: int) -> Script:
    def register(model: nn.Module) -> None:
        model.last.register_full_backward_pre_hook(normed)

    return _later(seed, register)


@HOOKS
def a_backward_hook_registered_on_the_way(seed: int) -> Script:
    """At lot 30, to find out why the loss jumps."""
    model = frozen_last(torch.relu)

    def body(training: Training) -> None:
        if training.k == 30:
            model.last.register_full_backward_pre_hook(normed)
        training.private.backward(training.lot)
        training.optimizer.step()

    def begun(training: Training) -> None:
        if training.private is None:
            model.last.register_full_backward_pre_hook(normed)

    script = Script(model, length, uneven(seed), suspects=RARE, attributed=True)
    script.begun, script.body = begun, body
    return script


@HOOKS
def a_forward_hook_registered_after_draws_standardises(seed: int) -> Script:
    def register(model: nn.Module) -> None:
        model.first.register_forward_hook(lambda _, args, h: h - h.mean(0))

    return _later(seed, register)


@HOOKS
def a_forward_pre_hook_scales_by_the_batch(seed: int) -> Script:
    def register(model: nn.Module) -> None:
        model.first.register_forward_pre_hook(lambda _, args: (args[0] / args[0].abs().max(),))

    return _later(seed, register)
