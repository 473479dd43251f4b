"""Standardise: features with mean 0 and variance 1 in each channel, by moments released once with noise.

    v_i = (mean over places of x_i/a, mean over places of (x_i/a)²)        one vector a record, 2 × channels
    released: Σ_i v_i · min(1, B/‖v_i‖) + N(0, (σB)² I), divided by the number of records

Tramèr & Boneh 2021, *Differentially private learning needs better features*, normalise scattering features so. Here every
channel is first divided by its typical size a, a public number: then no channel drowns in the noise that the largest one
needs, and a σ of 50 costs next to nothing.

**Privacy:** one record moves the sum by at most B, so this is one Gaussian mechanism on the whole data, and the ledger is
charged with it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino import validate
from sordino.door.ledger import Ledger
from sordino.door.noise import Gaussian
from sordino.random.rng import Rng
from sordino.refusal import Refusal
from sordino.statistics import ClippedSum, ask

LEAST_VARIANCE = 1e-3
"""In units of the typical size: noise can make a variance negative."""

_ROOM = 2.0  # B over the norm of a record whose channels all have their typical size


class Standardise(nn.Module):
    """(x − mean) · scale by channel, in float32 whatever comes in; until it is fitted, x over its typical size."""

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int, typical: Sequence[float] = (1.0,)) -> None:
        super().__init__()
        if channels % len(typical):
            raise ValueError(f"{len(typical)} typical sizes for {channels} channels: must divide their number")
        self.typical = torch.tensor(typical, dtype=torch.float64).repeat(channels // len(typical))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", self.typical.reciprocal().to(torch.float32))

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, …) to the same."""
        shape = (-1,) + (1,) * (x.dim() - 2)
        mean, scale = self.mean.view(shape), self.scale.view(shape)
        # A lot of features is large: memory touched for the first time costs more than the arithmetic.
        centred = x - mean if x.dtype == mean.dtype else x.to(mean.dtype).sub_(mean)
        return centred.mul_(scale)


@dataclass(frozen=True)
class Moments:
    """The statistic: means and variances of the channels, (2, C), from one noisy sum."""

    bound: float
    multiplier: float
    typical: Tensor

    @property
    def sums(self) -> Sequence[ClippedSum]:
        """Both moments as one vector, so that both cost one release."""
        return (ClippedSum(self.bound, Gaussian(self.multiplier), self._moments),)

    def _moments(self, rows: Tensor) -> Tensor:
        """(B, C, …) to (B, 2, C): means over places of x/a and of its square."""
        flat = rows.flatten(2) if rows.dim() > 2 else rows.unsqueeze(2)
        mean, square = flat.mean(2), flat.square().mean(2)
        return torch.stack([mean / self.typical, square / self.typical.square()], dim=1)

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> tuple[Tensor, Tensor]:
        """Mean and variance."""
        mean, square = noisy[0] / records()
        variance = (square - mean.square()).clamp(min=LEAST_VARIANCE)
        return mean * self.typical, variance * self.typical.square()


def standardise(
    model: nn.Module, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng, *, bound: float | None = None
) -> None:
    """Fit the model's `Standardise` layer on the private records and charge the ledger; without one, do nothing."""
    layers = [module for module in model.modules() if isinstance(module, Standardise)]
    if not layers:
        return
    if len(layers) > 1:
        raise Refusal(f"the model has {len(layers)} Standardise layers: need one, fitted to the data as it comes in")
    (layer,) = layers
    if bound is None:
        bound = _ROOM * math.sqrt(2 * len(layer.typical))
    asked = Moments(validate.positive("bound", bound), multiplier, layer.typical)
    mean, variance = ask(asked, train, ledger=ledger, rng=rng)
    layer.mean.copy_(mean)
    layer.scale.copy_(variance.rsqrt())
