"""Small problems the tests share."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

import sordino as sd


def linear(n: int = 64, inputs: int = 6, *, seed: int = 0) -> TensorDataset:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(n, inputs, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def network(inputs: int = 6) -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, 2))


def cross_entropy(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return nn.functional.cross_entropy(model(x), y, reduction="none")


def dpsgd(bound: float = 1.0, multiplier: float = 1.0) -> sd.NoisySum:
    return sd.NoisySum(sd.Flat(bound), sd.Gaussian(multiplier))


def private(model: nn.Module | None = None, *, seed: int | None = 0, **options) -> sd.Private:
    return sd.Private(
        network() if model is None else model, cross_entropy, options.pop("query", dpsgd()), seed=seed, **options
    )


class Rows(Dataset):
    """A map-style dataset that is not made of tensors."""

    def __init__(self, n: int = 64) -> None:
        self.inner = linear(n)

    def __len__(self) -> int:
        return len(self.inner)

    def __getitem__(self, i: int) -> tuple[Tensor, Tensor]:
        return self.inner[i]


def parameters(model: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in model.parameters()])
