"""Honest loops: what is done to released values is post-processing, and may be done."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import sordino as sd
from tests.honesty.data import CLASSES, INPUTS, cross_entropy, network, vectors
from tests.honesty.script import Cases, Script, Training, plain

LOOPS = Cases()


def _script(seed: int, body: Callable[[Training], None] = plain, **options: Any) -> Script:
    return Script(network(), cross_entropy, vectors(seed), body=body, **options)


@LOOPS
def a_gradient_penalty_of_each_record(seed: int) -> Script:
    """autograd.grad inside the loss, of every record's own input; by the backend that the refusal of the default names."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        x = x.clone().requires_grad_()
        (slope,) = torch.autograd.grad(model(x).logsumexp(1).sum(), x, create_graph=True)
        return cross_entropy(model, x, y) + (slope.norm(dim=1) - 1).square()

    return Script(network(), loss, vectors(seed), options={"backend": sd.per_sample.Loop()})


@LOOPS
def adversarial_training(seed: int) -> Script:
    """FGSM: the input's gradient without a graph."""

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.enable_grad():
            moved = x.detach().clone().requires_grad_()
            (slope,) = torch.autograd.grad(cross_entropy(model, moved, y).sum(), moved)
        return cross_entropy(model, x + 0.1 * slope.sign(), y)

    return Script(network(), loss, vectors(seed))


@LOOPS
def an_average_of_the_weights_is_swapped_in(seed: int) -> Script:
    average: dict[str, Tensor] = {}

    def body(training: Training) -> None:
        plain(training)
        for name, p in training.model.named_parameters():
            average[name] = p.detach().clone() if name not in average else average[name].lerp(p.detach(), 0.1)

    def ended(training: Training) -> None:
        with training.private.post_processing("the average of the weights"), torch.no_grad():
            for name, p in training.model.named_parameters():
                p.copy_(average[name])

    return _script(seed, body, ended=ended)


@LOOPS
def torchs_averaged_model_beside_it(seed: int) -> Script:
    kept: list[Any] = []

    def body(training: Training) -> None:
        plain(training)
        if not kept:
            kept.append(torch.optim.swa_utils.AveragedModel(training.model))
        kept[0].update_parameters(training.model)

    return _script(seed, body)


@LOOPS
def lookahead_weights_every_fifth_lot(seed: int) -> Script:
    slow: dict[str, Tensor] = {}

    def body(training: Training) -> None:
        plain(training)
        if training.k % 5 == 4:
            with training.private.post_processing("slow weights"), torch.no_grad():
                for name, p in training.model.named_parameters():
                    slow[name] = p.detach().clone() if name not in slow else slow[name].lerp(p.detach(), 0.5)
                    p.copy_(slow[name])

    return _script(seed, body)


@LOOPS
def weights_are_projected_onto_a_ball(seed: int) -> Script:
    def body(training: Training) -> None:
        plain(training)
        with training.private.post_processing("max-norm"), torch.no_grad():
            training.model[0].weight.copy_(torch.renorm(training.model[0].weight, 2, 0, 1.0))

    return _script(seed, body)


@LOOPS
def an_evaluation_on_held_out_records_after_every_lot(seed: int) -> Script:
    held_out = vectors(seed + 1).tensors

    def body(training: Training) -> None:
        plain(training)
        training.model.eval()
        with torch.no_grad():
            cross_entropy(training.model, *held_out)
        training.model.train()

    return _script(seed, body)


@LOOPS
def steps_on_public_records_in_between(seed: int) -> Script:
    public = vectors(seed + 1).tensors

    def body(training: Training) -> None:
        plain(training)
        if training.k % 10 == 0:
            with training.private.public("held-out records"):
                training.optimizer.zero_grad()
                cross_entropy(training.model, *public).mean().backward()
                training.optimizer.step()

    return _script(seed, body)


@LOOPS
def a_lot_is_left_out(seed: int) -> Script:
    """Charged, not used."""

    def body(training: Training) -> None:
        if training.k % 7:
            plain(training)

    return _script(seed, body)


@LOOPS
def a_step_counter_in_the_loss(seed: int) -> Script:
    """A schedule by the number of calls of something that knows no record."""
    model, step = network(), [0]

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return cross_entropy(model, x, y) * (0.5 + 0.5 * min(1.0, step[0] / 50))

    def body(training: Training) -> None:
        step[0] = training.k
        plain(training)

    return Script(model, loss, vectors(seed), body=body)


@LOOPS
def a_teacher_that_is_fixed(seed: int) -> Script:
    """Distillation from a network that was made before."""
    teacher = network()

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.no_grad():
            target = teacher(x).softmax(1)
        return F.cross_entropy(model(x), target, reduction="none")

    return Script(network(), loss, vectors(seed))


@LOOPS
def forward_hooks_that_only_look_at_shapes(seed: int) -> Script:
    script, seen = _script(seed), itertools.count()
    script.model[0].register_forward_hook(lambda module, args, out: None if next(seen) >= 0 else out)
    return script


@LOOPS
def a_hook_that_reverses_each_records_gradient(seed: int) -> Script:
    """Gradient reversal: a public factor."""

    class Reversed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(INPUTS, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).tanh()
            if h.requires_grad:
                h.register_hook(lambda g: -0.5 * g)
            return self.last(h)

    return Script(Reversed(), cross_entropy, vectors(seed))


@LOOPS
def a_loss_that_clips_each_records_own_gradient(seed: int) -> Script:
    class Clipped(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(INPUTS, 8), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            h = self.first(x).tanh()
            if h.requires_grad:
                h.register_hook(lambda g: g * (0.1 / g.norm(dim=1, keepdim=True).clamp(min=0.1)))
            return self.last(h)

    return Script(Clipped(), cross_entropy, vectors(seed))


@LOOPS
def a_penalty_and_a_physical_batch(seed: int) -> Script:
    return _script(seed, options={"penalty": sd.L2(0.1)}, physical_batch=4)


@LOOPS
def gradients_are_zeroed_in_every_usual_place(seed: int) -> Script:
    def body(training: Training) -> None:
        training.optimizer.zero_grad()
        plain(training)
        training.model.zero_grad()

    return _script(seed, body)
