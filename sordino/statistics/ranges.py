"""Finds bounds of columns privately, by a noisy histogram over powers of two.

It follows APPROX_BOUNDS of Wilson et al. 2020, *Differentially private SQL with bounded user contribution*
(arXiv:1909.01917), here with Gaussian noise and all columns in one release.

    bins of a column   (−2ᵏ⁺¹, −2ᵏ],  around 0,  [2ᵏ, 2ᵏ⁺¹)        k from −10 to 40
    released           Σ_i (one 1 in each column's bins) + noise;  the bounds span the bins above a threshold

The threshold is so high that all empty bins of all columns stay below it but once in a hundred times. So some of the
rarest values are beyond the bounds and will be cut: of N records about the σ√d·4 that are furthest out, d columns and
noise multiplier σ. Where no bin is above it, the fullest one is taken.

Privacy: a record has one 1 in each of d columns, so it moves the histogram by √d in L2: one release on the data. A
number that is not finite counts nowhere. Threshold and bounds are made of what was released.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.special import ndtri
from torch import Tensor, nn

from sordino.release.noise import Gaussian
from sordino.statistics.clipped_sum import ClippedSum

_LOWEST, _HIGHEST = -10, 40
_POWERS = _HIGHEST - _LOWEST + 1
BINS = 2 * _POWERS + 1
FALSE_ALARM = 0.01
"""The chance that any empty bin is taken for a full one."""


class Ranged(nn.Module):
    """Cuts the first columns to their bounds and scales them to [−1, 1]; the bounds are buffers, saved with the model.

    Other columns stay as they are.

    Until it is fitted, the bounds are −1 and 1.

    Args:
        columns: that have bounds.

    Examples:
        >>> import torch
        >>> Ranged(1)(torch.tensor([[5.0, 5.0]]))
        tensor([[1., 5.]])

    """

    low: Tensor
    high: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__()
        self.register_buffer("low", -torch.ones(columns))
        self.register_buffer("high", torch.ones(columns))

    def forward(self, x: Tensor) -> Tensor:
        """Returns the rows, (B, d), with their first columns cut and scaled to the ranges that were found privately."""
        first, other_columns = x[:, : len(self.low)], x[:, len(self.low) :]
        # Cut before scaling, or a value beyond the released bounds would leave [−1, 1].
        scaled = 2 * (first.clamp(self.low, self.high) - self.low) / (self.high - self.low) - 1
        return torch.cat([scaled, other_columns], dim=1)


@dataclass(frozen=True)
class Ranges:
    """A statistic of a table (N, ≥ columns) that gives the bounds of its first `columns` columns, (2, columns).

    Args:
        columns: the first so many.
        noise: on the histogram of every column.

    Privacy:
        One release for all columns together.

    Examples:
        >>> import torch
        >>> from sordino import Gaussian, Ledger, ask
        >>> ledger = Ledger()
        >>> ask(Ranges(2, Gaussian(20.0)), torch.rand(5000, 2), ledger=ledger, expected_batch=5000).shape
        torch.Size([2, 2])

    """

    columns: int
    noise: Gaussian

    @property
    def sums(self) -> Sequence[ClippedSum]:
        """One histogram of all columns."""
        return (ClippedSum(math.sqrt(self.columns), self.noise, self._one_hot_bins),)

    def _one_hot_bins(self, rows: Tensor) -> Tensor:
        """Returns the bins of the histogram that ranges are found by, one-hot: (B, columns, bins) from (B, d), with a 1
        where each number lies.
        """
        # The last place stands for numbers that are not finite; it is cut off, so such a number has no 1 anywhere.
        place = find_bins(rows[:, : self.columns])
        return torch.nn.functional.one_hot(place, BINS + 1)[:, :, :BINS].to(rows.dtype)

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> Tensor:
        """Returns the private ranges of the columns: the outer edges of the bins above the threshold; nothing is
        divided by the number of records.
        """
        # The threshold is so high that an empty bin exceeds it with probability FALSE_ALARM at most, over all bins.
        scale = self.noise.multiplier * math.sqrt(self.columns)
        threshold = scale * float(ndtri(1 - FALSE_ALARM / (BINS * self.columns)))
        bounds = []
        # If no bin is clearly filled, the fullest one is the best guess.
        for counts in noisy[0]:
            filled = (counts > threshold).nonzero().flatten()
            filled = counts.argmax().view(1) if not len(filled) else filled
            bounds.append((edges_of_bin(int(filled[0]))[0], edges_of_bin(int(filled[-1]))[1]))
        return torch.tensor(bounds, dtype=torch.float32).T


def find_bins(values: Tensor) -> Tensor:
    """Returns the bin of every number in the histogram by which ranges are found, from the lowest to the highest;
    `BINS` for one that is not finite.

    >>> find_bins(torch.tensor([-1e30, 0.0, 1.0, 3.0, 1e30, float("nan")])).tolist()
    [0, 51, 62, 63, 102, 103]
    """
    # A number that is not finite has a bin of its own, which is not released.
    finite = torch.isfinite(values)
    size = torch.where(finite, values, 0).abs().to(torch.float64)
    power = torch.floor(torch.log2(size.clamp(min=2.0 ** (_LOWEST - 1))))  # exact at powers of two
    # Powers below the lowest share the bin around zero; those above the highest share the outermost bin.
    step = (power - _LOWEST + 1).clamp(0, _POWERS).to(torch.int64)  # 0 around zero
    middle = torch.full_like(step, _POWERS)
    place = torch.where(values < 0, middle - step, middle + step)
    return torch.where(finite, place, BINS)


def edges_of_bin(place: int) -> tuple[float, float]:
    """Returns the lower and the upper edge of a bin of the histogram by which ranges are found.

    >>> edges_of_bin(62), edges_of_bin(51), edges_of_bin(40)
    ((1.0, 2.0), (-0.0009765625, 0.0009765625), (-2.0, -1.0))
    """
    # The middle bin lies around zero; to both sides the edges double.
    step = place - _POWERS
    if step == 0:
        return -(2.0**_LOWEST), 2.0**_LOWEST
    low, high = 2.0 ** (abs(step) - 1 + _LOWEST), 2.0 ** (abs(step) + _LOWEST)
    return (low, high) if step > 0 else (-high, -low)
