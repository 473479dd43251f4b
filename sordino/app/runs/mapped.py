"""Statistics over records after a fixed map, such as the layers that come earlier in a model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

import torch
from torch import Tensor

from sordino.release.noise import Noise
from sordino.release.sensitivity import Sensitivity
from sordino.statistics.statistic import Statistic, Sum

V = TypeVar("V")


@dataclass(frozen=True)
class _MappedSum:
    """A sum over the results of a fixed map, which is applied to each record by itself."""

    inner: Sum
    map: Callable[[Tensor], Tensor]

    @property
    def sensitivity(self) -> Sensitivity:
        """The sensitivity of the sum, which holds for any rows."""
        return self.inner.sensitivity

    @property
    def noise(self) -> Noise:
        """The noise of the sum."""
        return self.inner.noise

    def total(self, rows: Tensor) -> Tensor:
        """Returns the sum over the mapped rows."""
        with torch.no_grad():
            return self.inner.total(self.map(rows))


@dataclass(frozen=True)
class MappedStatistic(Generic[V]):
    """A statistic of records after a fixed map, which is applied to each record by itself."""

    inner: Statistic[V]
    map: Callable[[Tensor], Tensor]

    @property
    def sums(self) -> Sequence[_MappedSum]:
        """The sums of the statistic, over the mapped rows."""
        return [_MappedSum(part, self.map) for part in self.inner.sums]

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> V:
        """Returns what the statistic computes from its noisy sums."""
        return self.inner.value(noisy, records)
