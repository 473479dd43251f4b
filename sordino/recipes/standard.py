"""Standardise: features with mean 0 and variance 1 in each channel, by moments released once with noise.

    v_i = (mean over places of x_i, mean over places of x_i²)        one vector a record, 2 × channels
    released: Σ_i v_i · min(1, B/‖v_i‖) + N(0, (σB)² I), divided by the public number of records

Tramèr & Boneh 2021, *Differentially private learning needs better features*, normalise scattering features so.

**Privacy:** one record moves the sum by at most B, so this is one Gaussian mechanism on the whole data, and the ledger
is charged with it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino import validate
from sordino.ledger import Ledger
from sordino.noise import Gaussian
from sordino.refusal import Refusal
from sordino.rng import Rng
from sordino.statistics import ClippedSum, ask

LEAST_VARIANCE = 1e-6
"""Noise can make a variance negative."""


class Standardise(nn.Module):
    """(x − mean) · scale by channel, in float32 whatever comes in; the identity until it is fitted."""

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, …) to the same."""
        shape = (-1,) + (1,) * (x.dim() - 2)
        return (x.to(self.mean.dtype) - self.mean.view(shape)) * self.scale.view(shape)


@dataclass(frozen=True)
class Moments:
    """The statistic: means and variances of the channels, (2, C), from one noisy sum."""

    bound: float
    multiplier: float

    @property
    def sums(self) -> Sequence[ClippedSum]:
        """Both moments as one vector, so that both cost one release."""
        return (ClippedSum(self.bound, Gaussian(self.multiplier), moments),)

    def value(self, noisy: Sequence[Tensor], expected_batch: float) -> tuple[Tensor, Tensor]:
        """Mean and variance."""
        mean, square = noisy[0] / expected_batch
        return mean, (square - mean.square()).clamp(min=LEAST_VARIANCE)


def moments(rows: Tensor) -> Tensor:
    """(B, C, …) to (B, 2, C): means over places of x and of x²."""
    flat = rows.flatten(2) if rows.dim() > 2 else rows.unsqueeze(2)
    return torch.stack([flat.mean(2), flat.square().mean(2)], dim=1)


def standardise(
    model: nn.Module, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng, *, bound: float = 1.0
) -> None:
    """Fit the model's `Standardise` layer on the private records and charge the ledger; without one, do nothing."""
    layers = [module for module in model.modules() if isinstance(module, Standardise)]
    if not layers:
        return
    if len(layers) > 1:
        raise Refusal(f"the model has {len(layers)} Standardise layers: need one, fitted to the data as it comes in")
    asked = Moments(validate.positive("bound", bound), multiplier)
    mean, variance = ask(asked, train, ledger=ledger, expected_batch=len(train), rng=rng)
    layers[0].mean.copy_(mean)
    layers[0].scale.copy_(variance.rsqrt())
