"""Linear classifiers and plain networks on vectors or frozen features."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

_PCA, _HIDDEN = 60, 1000


def logistic_regression(shape: Sequence[int], classes: int) -> nn.Module:
    """Softmax regression on all of a record's numbers, starting from 0 (the loss is convex: no seed is needed)."""
    head = nn.Linear(math.prod(shape), classes)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return nn.Sequential(nn.Flatten(), head)


def mnist_net(shape: Sequence[int] = (1, 28, 28), classes: int = 10) -> nn.Module:
    """MNIST_Net, 784-256-32-10: 209,514 parameters."""
    layers = (nn.Linear(math.prod(shape), 256), nn.ReLU(), nn.Linear(256, 32), nn.ReLU(), nn.Linear(32, classes))
    return nn.Sequential(nn.Flatten(), *layers)


class Projection(nn.Module):
    """xᵀV with V a fixed (d, k) basis, such as the directions released by a private PCA; at first the first k axes."""

    basis: Tensor

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        if not 0 < outputs <= inputs:
            raise ValueError(f"outputs={outputs}: must lie between 1 and the inputs' {inputs}")
        self.register_buffer("basis", torch.eye(inputs, outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(B, d) to (B, k)."""
        return x @ self.basis

    def fit(self, basis: Tensor) -> None:
        """Set V; it must be public by now."""
        if basis.shape != self.basis.shape:
            raise ValueError(f"a basis of shape {tuple(basis.shape)}: need {tuple(self.basis.shape)}")
        self.basis.copy_(basis)


def pca_net(shape: Sequence[int] = (1, 28, 28), classes: int = 10, *, components: int = _PCA) -> nn.Module:
    """Abadi et al. 2016: a private PCA to 60 numbers, 1,000 ReLU units, softmax: 71,010 trained parameters."""
    layers = (nn.Linear(components, _HIDDEN), nn.ReLU(), nn.Linear(_HIDDEN, classes))
    return nn.Sequential(nn.Flatten(), Projection(math.prod(shape), components), *layers)
