"""Per-sample gradients written out, one tensor per parameter, as the loop and vmap give them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.per_sample.protocol import Norms
from sordino.per_sample.row_arithmetic import flatten_rows, row_squared_norms
from sordino.release.sensitivity import EXACT, Estimate
from sordino.release.vectors import Grads, accumulation_dtype


@dataclass(frozen=True)
class Materialised:
    """Holds per-sample gradients in full."""

    rows: Grads  # name -> (B, *shape)
    losses: Tensor  # (B,)
    estimate: Estimate = EXACT  # anything else only where there are no rows

    def norms(self) -> Norms:
        """Returns squared norms from materialised per-sample gradients."""
        columns = [row_squared_norms(rows) for rows in self.rows.values()]
        # A model that trains nothing still has losses, and norms without a column.
        if not columns:
            return Norms(torch.zeros(len(self.losses), 0), (), self.estimate)
        return Norms(torch.stack(columns, dim=1), tuple(self.rows), self.estimate)

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns inner products with materialised per-sample gradients."""
        columns = []
        for name, rows in self.rows.items():
            flat = flatten_rows(rows)
            other = u[name].flatten().to(flat.dtype) if name in u else flat.new_zeros(flat.shape[1])
            # In float64, because the terms of an inner product have both signs and may cancel.
            columns.append((flat * other).sum(dim=1, dtype=torch.float64).to(flat.dtype))
        return torch.stack(columns, dim=1)

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns Σ_i w_i g_i of materialised per-sample gradients, tensor by tensor."""
        total: Grads = {} if into is None else into
        for column, (name, rows) in enumerate(self.rows.items()):
            dtype = accumulation_dtype(rows.dtype)
            # A single column of weights is for the whole gradient; otherwise each tensor has its own.
            w = weights[:, column if weights.shape[1] > 1 else 0].to(dtype)  # (B,)
            summed = _weighted_product(w, rows.to(dtype))
            if not torch.isfinite(summed).all():  # 0 · nan is nan: leave the rows of weight 0 out
                summed = _weighted_product(w[w != 0], rows[w != 0].to(dtype))
            total[name] = total[name].add_(summed) if name in total else summed
        return total


def make_empty(parameters: Mapping[str, Tensor], estimate: Estimate = EXACT) -> Materialised:
    """Returns the materialised gradients of an empty lot, which is released with noise like any other."""
    rows = {name: torch.zeros((0, *p.shape), dtype=p.dtype, device=p.device) for name, p in parameters.items()}
    device = next((row.device for row in rows.values()), torch.device("cpu"))
    return Materialised(rows, torch.zeros(0, device=device), estimate)


_TOGETHER = 320
"""The most rows in one product, which adds them up in float32: with more rows, rounding errors would grow too large."""


def _weighted_product(w: Tensor, rows: Tensor) -> Tensor:
    """Returns Σ_i w_i rows_i of materialised rows, a few hundred rows at a time."""
    total: Tensor = torch.tensordot(w[:_TOGETHER], rows[:_TOGETHER], dims=1)
    for some, piece in zip(w[_TOGETHER:].split(_TOGETHER), rows[_TOGETHER:].split(_TOGETHER), strict=True):
        if len(some):
            total.add_(torch.tensordot(some, piece, dims=1))
    return total
