"""The private PCA before the first step, as in Abadi et al. 2016 (arXiv:1607.00133).

The principal directions of the records are released once and then fixed.

    M̃ = Σ_i a_i a_iᵀ + noise,  a_i the record as it reaches the projection, at length 1;  x ↦ x·V_k

What lies before the projection in the model, such as standardising by moments released earlier, is applied to each record
first; it is fixed by then.

**Privacy:** one Gaussian mechanism of sensitivity 1 on the whole data (`statistics/pca.py`); the ledger is charged with it.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.data import TensorDataset

from sordino.app.runs.mapped import MappedStatistic
from sordino.ledger.ledger import Ledger
from sordino.release.noise import Gaussian
from sordino.rng.streams import Rng
from sordino.statistics import PCA, Projection, ask


def unfitted_projection(numbers: int, components: int) -> Projection:
    """Returns a projection that is not fitted yet, for records of so many numbers."""
    if components > numbers:
        raise ValueError(f"components={components}: the records have only {numbers} numbers each; ask for fewer")
    return Projection(torch.zeros(numbers, components), torch.zeros(numbers))


def project(model: nn.Sequential, train: TensorDataset, multiplier: float, ledger: Ledger, rng: Rng) -> None:
    """Fits the model's projection on the private records and charges the ledger."""
    position = next(i for i, layer in enumerate(model) if isinstance(layer, Projection))
    layer, earlier_layers = model[position], model[:position]
    assert isinstance(layer, Projection)  # as was asked just now
    statistic = PCA(layer.basis.shape[1], Gaussian(multiplier))
    components = ask(MappedStatistic(statistic, earlier_layers), train, ledger=ledger, rng=rng)
    layer.basis.copy_(components.basis)
    layer.eigenvalues.copy_(components.eigenvalues)
