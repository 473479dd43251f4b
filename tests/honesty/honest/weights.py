"""Honest uses of weights: in other precisions, tied, made by functions, thawed on the way; and records of every size."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import TensorDataset

from tests.honesty.data import CLASSES, INPUTS, RARE, WORDS, N, cross_entropy, generator, network, vectors
from tests.honesty.honest.layers import Net, _vectors, encoder, words
from tests.honesty.script import Cases, Script, Training, plain

WEIGHTS = Cases()


@WEIGHTS
def bfloat16_parameters(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(x.bfloat16()).float(), y, reduction="none")

    return Script(network().bfloat16(), loss, vectors(seed))


@WEIGHTS
def bfloat16_transformer(seed: int) -> Script:
    script = encoder(seed, 0.0, unlike=True)
    script.model.bfloat16()

    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).float(), y, reduction="none")

    script.loss = loss
    return script


@WEIGHTS
def autocast_in_the_loop(seed: int) -> Script:
    script = _vectors(seed, network())

    def body(training: Training) -> None:
        with torch.autocast("cpu", torch.bfloat16):
            training.private.backward(training.lot)
        training.optimizer.step()

    script.body = body
    return script


@WEIGHTS
def autocast_in_the_loss(seed: int) -> Script:
    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            z = model(x)
        return F.cross_entropy(z.float(), y, reduction="none")

    return Script(network(), loss, vectors(seed))


@WEIGHTS
def float64(seed: int) -> Script:
    data = vectors(seed)
    return Script(network().double(), cross_entropy, TensorDataset(data.tensors[0].double(), data.tensors[1]))


@WEIGHTS
def tied_weights(seed: int) -> Script:
    model = nn.Sequential(nn.Embedding(WORDS, 6), nn.Tanh(), nn.Linear(6, WORDS, bias=False))
    model[2].weight = model[0].weight

    def loss(model: nn.Module, ids: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(model(ids).transpose(1, 2), ids, reduction="none").mean(1)

    return Script(model, loss, words(seed))


@WEIGHTS
def transposed_tied_weights(seed: int) -> Script:
    """An autoencoder whose decoder is its encoder's transpose."""

    def run(m: Any, x: Tensor) -> Tensor:
        return F.linear(m.first(x).tanh(), m.first.weight.t())

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (model(x) - x).square().sum(1)

    return Script(Net(run, first=nn.Linear(INPUTS, 4)), loss, vectors(seed))


@WEIGHTS
def a_weight_used_through_a_function_of_it(seed: int) -> Script:
    """F.linear(x, 2 * w): an equalised learning rate."""

    class Scaled(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Parameter(torch.randn(8, INPUTS) * 0.2), nn.Linear(8, CLASSES)

        def forward(self, x: Tensor) -> Tensor:
            return self.last(F.linear(x, 2 * self.first).tanh())

    return _vectors(seed, Scaled())


@WEIGHTS
def a_hypernetwork(seed: int) -> Script:
    """The weights of a layer are what another layer makes of a learnt code."""

    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.code, self.maker = nn.Parameter(torch.randn(4)), nn.Linear(4, CLASSES * INPUTS)

        def forward(self, x: Tensor) -> Tensor:
            return x @ self.maker(self.code).view(INPUTS, CLASSES)

    return _vectors(seed, Hyper())


@WEIGHTS
def a_hypernetwork_of_each_record(seed: int) -> Script:
    class Hyper(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.maker = nn.Linear(INPUTS, CLASSES * INPUTS)

        def forward(self, x: Tensor) -> Tensor:
            return torch.einsum("bi,bio->bo", x, self.maker(x).view(-1, INPUTS, CLASSES))

    return _vectors(seed, Hyper())


@WEIGHTS
def spectral_norm(seed: int) -> Script:
    """In training: power iteration writes to its buffers, and reads the weight alone."""
    model = nn.Sequential(
        nn.utils.parametrizations.spectral_norm(nn.Linear(INPUTS, 8)), nn.Tanh(), nn.Linear(8, CLASSES)
    )
    return _vectors(seed, model)


@WEIGHTS
def weight_norm(seed: int) -> Script:
    model = nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(INPUTS, 8)), nn.Tanh(), nn.Linear(8, CLASSES))
    return _vectors(seed, model)


@WEIGHTS
def a_free_parameter_beside_layers(seed: int) -> Script:
    class Prompted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.prompt, self.net = nn.Parameter(torch.randn(INPUTS)), network()

        def forward(self, x: Tensor) -> Tensor:
            return self.net(x + self.prompt)

    return _vectors(seed, Prompted())


@WEIGHTS
def a_frozen_body_and_a_trained_head(seed: int) -> Script:
    model = network()
    model[0].requires_grad_(False)
    return _vectors(seed, model)


@WEIGHTS
def a_layer_that_is_thawed_on_the_way(seed: int) -> Script:
    model = network()
    model[0].requires_grad_(False)

    def body(training: Training) -> None:
        if training.k == 30:
            model[0].requires_grad_(True)
        plain(training)

    script = _vectors(seed, model)
    script.body = body
    return script


@WEIGHTS
def a_module_without_parameters_is_swapped_in(seed: int) -> Script:
    model = network()

    def body(training: Training) -> None:
        if training.k == 30:
            model[1] = nn.ReLU()
        plain(training)

    script = _vectors(seed, model)
    script.body = body
    return script


@WEIGHTS
def several_modules_without_parameters_are_swapped_in(seed: int) -> Script:
    """One place becomes two, and what comes after it moves up."""
    model = network()

    def body(training: Training) -> None:
        if training.k == 30:
            model[1] = nn.Sequential(nn.ReLU(), nn.Identity())
        plain(training)

    script = _vectors(seed, model)
    script.body = body
    return script


@WEIGHTS
def records_of_very_unlike_size(seed: int) -> Script:
    data = vectors(seed)
    data.tensors[0].mul_(torch.logspace(-6, 6, N)[:, None])
    return Script(network(), cross_entropy, data)


@WEIGHTS
def records_that_are_not_finite(seed: int) -> Script:
    """They contribute nothing, and nobody is told."""
    data = vectors(seed)
    data.tensors[0][list(RARE)] = torch.nan
    return Script(network(), cross_entropy, data)


@WEIGHTS
def losses_with_large_terms_that_cancel(seed: int) -> Script:
    """A log likelihood with its constants, computed in two ways: of 100,000 little but rounding is left."""
    mixed = torch.randn(INPUTS, 16, generator=generator(seed))

    def loss(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
        return (cross_entropy(model, x, y) + 1e5 * (x @ mixed).sum(1)) - 1e5 * (x @ mixed.sum(1))

    return Script(network(), loss, vectors(seed))


@WEIGHTS
def a_classifier_that_is_sure(seed: int) -> Script:
    """Trained already: gradients are little but rounding."""
    model, data = network(), vectors(seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.1)
    for _ in range(60):
        optimizer.zero_grad()
        cross_entropy(model, *vectors(seed + 1).tensors).mean().backward()
        optimizer.step()
    return Script(model, cross_entropy, data)
