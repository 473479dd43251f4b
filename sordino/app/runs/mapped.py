"""A statistic asked of what a fixed map makes of each record by itself, such as the layers that come before in a model."""

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
class _Mapped:
    """A sum over what a fixed map makes of each record by itself."""

    of: Sum
    map: Callable[[Tensor], Tensor]

    @property
    def sensitivity(self) -> Sensitivity:
        """The sum's own: it holds for any rows."""
        return self.of.sensitivity

    @property
    def noise(self) -> Noise:
        """The sum's own."""
        return self.of.noise

    def total(self, rows: Tensor) -> Tensor:
        """Over the mapped rows."""
        with torch.no_grad():
            return self.of.total(self.map(rows))


@dataclass(frozen=True)
class Mapped(Generic[V]):
    """A statistic of mapped records."""

    of: Statistic[V]
    map: Callable[[Tensor], Tensor]

    @property
    def sums(self) -> Sequence[_Mapped]:
        """Of the mapped rows."""
        return [_Mapped(part, self.map) for part in self.of.sums]

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> V:
        """The statistic's own."""
        return self.of.value(noisy, records)
