"""The clipped sum Σ_i clip(h(x_i)), in which every record's vector is shortened to the bound.

    clip(v) = v · min(1, C / ‖v‖),   L2 for Gaussian noise, L1 for Laplace noise

Privacy: ‖clip(v)‖ ≤ C, so one record there or not moves the sum by at most C. A record whose vector is not finite
contributes nothing. Norms are taken in float64.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import refuse_statistics
from sordino.clipping.flat import shorten
from sordino.per_sample.row_arithmetic import flatten_rows
from sordino.release.noise import Laplace, Noise
from sordino.release.sensitivity import Sensitivity
from sordino.rng.streams import Rng


def identity(rows: Tensor) -> Tensor:
    """Returns the records themselves."""
    return rows


@dataclass(frozen=True)
class ClippedSum:
    """The sum of `of(x)` over the records, each shortened to `bound`.

    Args:
        bound: the length that no record's vector exceeds afterwards.
        noise: in proportion to it.
        of: from rows to vectors, each on its own.

    Privacy:
        One release of the noise's event.

    Examples:
        >>> import torch
        >>> from sordino import Gaussian, Ledger, ask
        >>> ledger = Ledger()
        >>> ClippedSum(bound=1.0, noise=Gaussian(5.0)).noise
        Gaussian(multiplier=5.0)

    """

    bound: float
    noise: Noise
    of: Callable[[Tensor], Tensor] = identity  # (B, …) -> (B, …), each row on its own

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound))
        validate.noise("noise", self.noise).bound_for(self.sensitivity)

    @property
    def sensitivity(self) -> Sensitivity:
        """The bound; a vector within it in L1 is within it in L2 too."""
        return Sensitivity(l2=self.bound, l1=self.bound if isinstance(self.noise, Laplace) else None)

    def total(self, rows: Tensor) -> Tensor:
        """Returns the clipped sum of a statistic's rows, in the shape of one record's vector."""
        # Sums are formed in float64, so that rounding cannot exceed the bound noticeably.
        wide = rows.to(torch.float64)
        vectors = self.of(wide)
        # A user's own function is tried on other rows, to see that each vector depends on its own record.
        if self.of is not identity:
            refuse_statistics(self.of, wide, vectors, Rng.from_entropy(), f"of={self.of!r}")
        # A row whose norm is not finite contributes nothing.
        order = 1 if isinstance(self.noise, Laplace) else 2
        norms = torch.linalg.vector_norm(flatten_rows(vectors), order, dim=1)
        weights = torch.where(torch.isfinite(norms), shorten(norms, self.bound), 0)
        kept = torch.where(weights.view(-1, *[1] * (vectors.dim() - 1)) > 0, vectors, 0)  # 0 · nan is nan
        summed: Tensor = torch.tensordot(weights, kept, dims=1)
        return summed
