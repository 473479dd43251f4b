"""A private PCA before the first step: the records' principal directions, released once, then fixed (Abadi et al. 2016).

    M̃ = Σ_i a_i a_iᵀ + noise,  a_i the record as it reaches the projection, at length 1;  x ↦ x·V_k

What lies before the projection in the model, such as standardising by moments released earlier, is applied to each record
first; it is fixed by then.

**Privacy:** one Gaussian mechanism of sensitivity 1 on the whole data (`statistics/pca.py`); the ledger is charged with it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.door.ledger import Ledger
from sordino.door.noise import Gaussian, Noise
from sordino.door.sensitivity import Sensitivity
from sordino.random.rng import Rng
from sordino.statistics import PCA, Projection, ask
from sordino.statistics.statistic import Sum


def unfitted(numbers: int, components: int) -> Projection:
    """A projection with nothing in it yet, for records of so many numbers."""
    if components > numbers:
        raise ValueError(f"components={components}: the records have only {numbers} numbers each; ask for fewer")
    return Projection(torch.zeros(numbers, components), torch.zeros(numbers))


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
class _Directions:
    """PCA of mapped records."""

    pca: PCA
    map: Callable[[Tensor], Tensor]

    @property
    def sums(self) -> Sequence[_Mapped]:
        """One matrix."""
        return [_Mapped(part, self.map) for part in self.pca.sums]

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> Projection:
        """The eigenvectors."""
        return self.pca.value(noisy, records)


def project(model: nn.Sequential, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng) -> None:
    """Fit the model's projection on the private records and charge the ledger."""
    where = next(i for i, layer in enumerate(model) if isinstance(layer, Projection))
    layer, first = model[where], model[:where]
    assert isinstance(layer, Projection)  # as was asked just now
    asked = _Directions(PCA(layer.basis.shape[1], Gaussian(multiplier)), first)
    found = ask(asked, train, ledger=ledger, rng=rng)
    layer.basis.copy_(found.basis)
    layer.eigenvalues.copy_(found.eigenvalues)
