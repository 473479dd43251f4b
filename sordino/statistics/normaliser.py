"""Private normalisation of features (as Tramèr & Boneh 2021 do before a linear model on fixed features).

Per record the channel means m_i and the channel means of squares s_i, over the record's own positions; then

    μ̃ = (Σ_i clip_{C₁}(m_i) + noise) / n,    ṽ = (Σ_i clip_{C₂}(s_i) + noise) / n − μ̃²,    x ↦ (x − μ̃) / √max(ṽ, floor)

Privacy: two releases on the same records, both charged. The map made of them is public, and applying it to a record looks
at that record alone.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from torch import Tensor, nn

from sordino import validate
from sordino.door.noise import Noise
from sordino.statistics.clipped_sum import ClippedSum


class Normalise(nn.Module):
    """x ↦ (x − mean) / std by channel, dimension 1; the two are buffers, so they are saved with the model."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Tensor, std: Tensor) -> None:
        super().__init__()
        self.register_buffer("mean", mean)
        self.register_buffer("std", std)

    def forward(self, x: Tensor) -> Tensor:
        """Of a batch (B, channels, …)."""
        shape = (1, -1, *[1] * (x.dim() - 2))
        return (x - self.mean.view(shape).to(x.dtype)) / self.std.view(shape).to(x.dtype)


@dataclass(frozen=True)
class Normaliser:
    """Asked of features (N, channels, …), gives a `Normalise` module.

    `mean_bound` and `square_bound` shorten a record's vectors of channel means and of channel mean squares; features in
    [−1, 1] with d channels have both within √d. Both sums get `noise`. `floor` is the least variance.
    """

    mean_bound: float
    square_bound: float
    noise: Noise
    floor: float = 1e-5

    def __post_init__(self) -> None:
        for name in ("mean_bound", "square_bound", "floor"):
            object.__setattr__(self, name, validate.positive(name, getattr(self, name)))

    @property
    def sums(self) -> Sequence[ClippedSum]:
        """Means, then mean squares."""
        return (
            ClippedSum(self.mean_bound, self.noise, _channel_means),
            ClippedSum(self.square_bound, self.noise, _channel_mean_squares),
        )

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> Normalise:
        """The map, in float32."""
        mean, square = noisy[0] / records(), noisy[1] / records()
        variance = (square - mean.square()).clamp(min=self.floor)
        return Normalise(mean.float(), variance.sqrt().float())


def _channel_means(rows: Tensor) -> Tensor:
    """(B, channels, …) to (B, channels)."""
    return rows.flatten(2).mean(dim=2) if rows.dim() > 2 else rows


def _channel_mean_squares(rows: Tensor) -> Tensor:
    return _channel_means(rows.square())
