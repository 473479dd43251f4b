"""A private mean, and a private number of records.

    μ̃ = (Σ_i clip(x_i) + noise) / n

Privacy: one release of a clipped sum, divided by a public number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import validate
from sordino.release.noise import Noise
from sordino.statistics.clipped_sum import ClippedSum


@dataclass(frozen=True)
class Mean:
    """The mean of the records, each shortened to `bound`: in L2 for Gaussian noise, in L1 for Laplace noise.

    Args:
        bound: the length that no record exceeds afterwards.
        noise: Gaussian or Laplace.

    Privacy:
        One release of the noise's event. The sum is divided by a public number.

    Examples:
        >>> import torch
        >>> from sordino import Gaussian, Ledger, ask
        >>> ledger = Ledger()
        >>> ask(Mean(1.0, Gaussian(5.0)), torch.rand(1000, 3), ledger=ledger, expected_batch=1000).shape
        torch.Size([3])

    """

    bound: float
    noise: Noise

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound))

    @property
    def sums(self) -> Sequence[ClippedSum]:
        """The clipped sum of the records."""
        return (ClippedSum(self.bound, self.noise),)

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> Tensor:
        """Returns the noisy sum divided by the public number of records."""
        return noisy[0] / records()


@dataclass(frozen=True)
class Count:
    """The noisy number of records, a number to divide other sums by. One record moves it by 1.

    Args:
        noise: a record moves the count by 1.

    Privacy:
        One release of the noise's event.

    Examples:
        >>> import torch
        >>> from sordino import Gaussian, Ledger, ask
        >>> ledger = Ledger()
        >>> ask(Count(Gaussian(2.0)), torch.rand(1000, 3), ledger=ledger) > 900
        True

    """

    noise: Noise

    @property
    def sums(self) -> Sequence[ClippedSum]:
        """Σ 1."""
        return (ClippedSum(1.0, self.noise, _ones_for),)

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> float:
        """Returns the noisy count, at least 1, so that it can be divided by."""
        return max(1.0, float(noisy[0]))


def _ones_for(rows: Tensor) -> Tensor:
    return torch.ones(len(rows), 1, dtype=rows.dtype, device=rows.device)
