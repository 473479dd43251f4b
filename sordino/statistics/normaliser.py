"""Normalises features to mean 0 and variance 1 per channel, by moments released with noise.

    v_i = (mean over places of x_i/a, mean over places of (x_i/a)²)        one vector a record, 2 × channels
    released: Σ_i v_i · min(1, B/‖v_i‖) + noise, divided by the number of records;    x ↦ (x − μ̃) / √max(ṽ, floor)

Tramèr & Boneh 2021, *Differentially private learning needs better features*, normalise scattering features so. Every
channel is first divided by its typical size a, a public number: then no channel drowns in the noise that the largest
one needs, and a multiplier of 50 costs next to nothing.

Privacy: one record moves the sum by at most B: one release on the data. The map made of it is public, and applying it
to a record looks at that record alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino import validate
from sordino.release.noise import Noise
from sordino.statistics.clipped_sum import ClippedSum

LEAST_VARIANCE = 1e-3
"""The least variance, in units of the typical size, because noise can make a variance negative."""

_ROOM = 2.0
"""The ratio of the usual bound to the norm of a record whose channels all have their typical size."""


class Normalise(nn.Module):
    """Computes (x − mean) · scale for each channel (dimension 1), in float32; both are buffers, saved with the model.

    Until it is fitted, it divides x by its typical size.

    Args:
        channels: of the features.
        typical: public sizes, used until it is fitted.

    Examples:
        >>> import torch
        >>> Normalise(2)(torch.ones(1, 2)).shape
        torch.Size([1, 2])

    """

    mean: Tensor
    scale: Tensor

    def __init__(self, channels: int, typical: Sequence[float] = (1.0,)) -> None:
        super().__init__()
        self.typical = typical_sizes(channels, typical)
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("scale", self.typical.reciprocal().to(torch.float32))

    def fit(self, mean: Tensor, variance: Tensor) -> None:
        """Sets mean and scale by moments that were released."""
        self.mean.copy_(mean)
        self.scale.copy_(variance.rsqrt())

    def forward(self, x: Tensor) -> Tensor:
        """Returns the features normalised by the released moments, (B, C, …)."""
        shape = (-1,) + (1,) * (x.dim() - 2)
        mean, scale = self.mean.view(shape), self.scale.view(shape)
        # A lot of features is large: memory touched for the first time costs more than the arithmetic.
        centred = x - mean if x.dtype == mean.dtype else x.to(mean.dtype).sub_(mean)
        return centred.mul_(scale)


@dataclass(frozen=True)
class Normaliser:
    """A statistic of features (N, channels, …) that gives a fitted `Normalise` module.

    `bound` shortens a record's vector of channel means and channel mean squares, each in units of the channel's
    `typical` size (repeated if there are more channels); `usual_bound(channels)` is twice the norm of a record of
    typical size.

    Args:
        bound: on a record's moments.
        noise: in proportion to it.
        typical: public sizes of the channels.

    Privacy:
        Both moments are one vector, so both together are one release.

    Examples:
        >>> import torch
        >>> from sordino import Gaussian, Ledger, ask
        >>> ledger = Ledger()
        >>> ask(Normaliser(bound=20.0, noise=Gaussian(5.0)), torch.rand(1000, 3), ledger=ledger, expected_batch=1000)
        Normalise()

    """

    bound: float
    noise: Noise
    typical: tuple[float, ...] = (1.0,)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound))
        validate.noise("noise", self.noise)
        sizes = validate.sequence("typical", self.typical, "the typical sizes of the channels")
        object.__setattr__(self, "typical", tuple(validate.positive("typical", size) for size in sizes))

    @property
    def sums(self) -> Sequence[ClippedSum]:
        """Both moments as one vector, so that both cost one release."""
        return (ClippedSum(self.bound, self.noise, self._channel_moments),)

    def _channel_moments(self, rows: Tensor) -> Tensor:
        """Returns the moments of the channels by which features are normalised, (B, 2, C) from (B, C, …): the means
        over places of x/a and of its square.
        """
        flat = rows.flatten(2) if rows.dim() > 2 else rows.unsqueeze(2)
        mean, square = flat.mean(2), flat.square().mean(2)
        # In units of their typical sizes all channels weigh about the same in the one norm that is clipped.
        typical = typical_sizes(mean.shape[1], self.typical)
        return torch.stack([mean / typical, square / typical.square()], dim=1)

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> Normalise:
        """Returns the fitted module that normalises features, in float32."""
        mean, square = noisy[0] / records()
        # Var x = E x² − (E x)², from noisy moments, so it may come out negative.
        variance = (square - mean.square()).clamp(min=LEAST_VARIANCE)
        typical = typical_sizes(len(mean), self.typical)
        module = Normalise(len(mean), self.typical)
        # Back from typical units to those of the features: the mean goes with a, the variance with a².
        module.fit(mean * typical, variance * typical.square())
        return module


def usual_bound(channels: int) -> float:
    """Returns a bound of the normaliser with room for records whose channels are twice their typical size.

    >>> usual_bound(8)
    8.0
    """
    return _ROOM * math.sqrt(2 * channels)


def typical_sizes(channels: int, typical: Sequence[float]) -> Tensor:
    """Returns the typical size of every channel for the normaliser, in float64."""
    if channels % len(typical):
        raise ValueError(f"{len(typical)} typical sizes for {channels} channels: must divide their number")
    return torch.tensor(typical, dtype=torch.float64).repeat(channels // len(typical))
