"""The eight models of the speed and memory tables, with inputs and a loss per sample each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from sordino.nn import LanguageModel, LSTMClassifier, cifar_net, mnist_cnn, mnist_net, resnet18, wrn16_4


def wide_mlp() -> nn.Module:
    """Returns a network 1024-4096-4096-10."""
    return nn.Sequential(nn.Linear(1024, 4096), nn.ReLU(), nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 10))


def classification(out: Tensor, y: Tensor) -> Tensor:
    """Returns the cross-entropy of each sample."""
    return F.cross_entropy(out, y, reduction="none")


def language(out: Tensor, y: Tensor) -> Tensor:
    """Returns the mean cross-entropy over a sample's own tokens."""
    return F.cross_entropy(out.transpose(1, 2), y, reduction="none").mean(1)


@dataclass(frozen=True)
class Problem:
    """A model, its data and its batch sizes; the first is the quick one, the last the one the targets are about."""

    name: str
    model: Callable[[], nn.Module]
    inputs: Callable[[int], Tensor]
    batches: tuple[int, ...]
    targets: Callable[[int], Tensor] = lambda b: torch.randint(0, 10, (b,))
    loss: Callable[[Tensor, Tensor], Tensor] = classification
    images: bool = False
    small: bool = False  # small enough to run every peer in both memory formats
    target: float = 1.25  # of the best non-private layout
    autocast: bool = False  # every engine's step runs under bfloat16 autocast


PROBLEMS = (
    Problem("MLP", mnist_net, lambda b: torch.randn(b, 784), (64, 256), target=1.15),
    Problem(
        "MNIST CNN", mnist_cnn, lambda b: torch.randn(b, 1, 28, 28), (64, 256), images=True, small=True, target=1.2
    ),
    Problem(
        "CIFAR net", cifar_net, lambda b: torch.randn(b, 3, 32, 32), (64, 256), images=True, small=True, target=1.15
    ),
    Problem("ResNet-18", resnet18, lambda b: torch.randn(b, 3, 32, 32), (64,), images=True, target=1.25),
    Problem("WRN-16-4", wrn16_4, lambda b: torch.randn(b, 3, 32, 32), (64,), images=True, target=1.2),
    Problem(
        "GPT-like",
        LanguageModel,
        lambda b: torch.randint(0, 1000, (b, 128)),
        (16,),
        lambda b: torch.randint(0, 1000, (b, 128)),
        language,
        target=1.25,
    ),
    Problem("LSTM", LSTMClassifier, lambda b: torch.randint(0, 100, (b, 50)), (64, 256), target=1.4),
    Problem("wide MLP", wide_mlp, lambda b: torch.randn(b, 1024), (64, 256), target=1.1),
)
