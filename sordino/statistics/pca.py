"""Principal directions of the data, privately: DP-PCA (Abadi et al. 2016, arXiv:1607.00133).

Every record is a row a of unit length (a zero row stays zero; nothing is centred, since a private mean would cost
more):

    M̃ = AᵀA + G,   G_{jk} ~ N(0, σ²) on all d² entries,   (M̃ + M̃ᵀ)/2 = V Λ Vᵀ,   x ↦ x V_k

Symmetrising the full G halves the variance off the diagonal, which mirrored noise would not, at the same ε.

Privacy: one record moves AᵀA by aaᵀ, whose Frobenius norm is ‖a‖² ≤ 1: one Gaussian release. Eigenvectors and
eigenvalues of the noisy matrix, the number of components, and the projection of every record are post-processing or
public.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from sordino import validate
from sordino.per_sample.row_arithmetic import flatten_rows
from sordino.refusal import Refusal
from sordino.release.noise import Noise
from sordino.release.sensitivity import Sensitivity


class Projection(nn.Module):
    """Maps x to x·basis for records flattened to d numbers; `eigenvalues` are all d of the noisy matrix, largest first.

    Args:
        basis: (d, k), released.
        eigenvalues: (d,), released.

    Examples:
        >>> import torch
        >>> Projection(torch.eye(3)[:, :2], torch.ones(3))(torch.ones(1, 3))
        tensor([[1., 1.]])

    """

    basis: Tensor  # (d, k)
    eigenvalues: Tensor  # (d,)

    def __init__(self, basis: Tensor, eigenvalues: Tensor) -> None:
        super().__init__()
        self.register_buffer("basis", basis)
        self.register_buffer("eigenvalues", eigenvalues)

    def forward(self, x: Tensor) -> Tensor:
        """Returns the projected records, (B, k), from (B, …)."""
        wide = torch.promote_types(x.dtype, self.basis.dtype)
        return x.flatten(1).to(wide) @ self.basis.to(wide)


@dataclass(frozen=True)
class Gram:
    """The sum AᵀA over the rows of unit length, (d, d).

    Args:
        noise: on every entry, the same above and below the diagonal.
        at_least: components that are wanted; refused where there are fewer columns.

    Privacy:
        One release of the noise's event: a row of unit length moves AᵀA by at most 1.

    Examples:
        >>> from sordino import Gaussian
        >>> Gram(Gaussian(5.0)).noise
        Gaussian(multiplier=5.0)

    """

    noise: Noise
    at_least: int = 1  # columns

    @property
    def sensitivity(self) -> Sensitivity:
        """‖aaᵀ‖_F = ‖a‖² ≤ 1."""
        return Sensitivity(l2=1.0)

    def total(self, rows: Tensor) -> Tensor:
        """Returns AᵀA in float64, which private PCA is computed from; a row that is not finite contributes nothing."""
        # Every record becomes a unit vector, so that its outer product has Frobenius norm 1.
        flat = flatten_rows(rows.to(torch.float64))  # (B, d)
        if flat.shape[1] < self.at_least:
            raise Refusal(
                f"components={self.at_least}: the records have only {flat.shape[1]} numbers each.\n"
                "There are no more directions than numbers.\n"
                "Ask for fewer."
            )
        # By the largest entry first, or the squares of very large and very small rows would leave the range of numbers.
        flat = flat / flat.abs().amax(dim=1, keepdim=True).clamp(min=torch.finfo(flat.dtype).tiny)
        unit = flat / torch.linalg.vector_norm(flat, dim=1, keepdim=True)
        # A zero row has become 0/0 and infinities ∞/∞; set to 0 they add nothing, which keeps within the bound.
        unit = torch.where(torch.isfinite(unit).all(dim=1, keepdim=True), unit, 0)
        return unit.mT @ unit


@dataclass(frozen=True)
class PCA:
    """A statistic that gives a `Projection` to the first `components` principal directions of the data.

    Privacy:
        One release: the noisy matrix AᵀA. Everything after it is post-processing.

    Examples:
        >>> from sordino import Gaussian, Ledger, ask
        >>> ledger = Ledger()
        >>> ask(PCA(components=2, noise=Gaussian(4.0)), torch.rand(100, 5), ledger=ledger)(torch.rand(3, 5)).shape
        torch.Size([3, 2])

    """

    components: int
    noise: Noise

    def __post_init__(self) -> None:
        validate.count("components", self.components)
        validate.noise("noise", self.noise).bound_for(Sensitivity(l2=1.0))

    @property
    def sums(self) -> Sequence[Gram]:
        """The one matrix that is released."""
        return (Gram(self.noise, self.components),)

    def value(self, noisy: Sequence[Tensor], records: Callable[[], float]) -> Projection:
        """Returns the projection to the principal directions, the eigenvectors of the largest eigenvalues, in float32;
        nothing is divided.
        """
        # `eigh` reads one triangle only; the mean of both halves the variance of the noise off the diagonal.
        matrix = (noisy[0] + noisy[0].mT) / 2
        values, vectors = torch.linalg.eigh(matrix)  # ascending
        return Projection(vectors.flip(1)[:, : self.components].float(), values.flip(0).float())
