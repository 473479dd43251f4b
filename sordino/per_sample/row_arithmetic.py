"""Arithmetic on rows of gradients: squares that do not read low, and sums over no samples."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from sordino.release.vectors import Grads, accumulation_dtype


def zero_sum(parameters: Mapping[str, Tensor]) -> Grads:
    """Returns a sum over no samples."""
    return {n: torch.zeros(p.shape, dtype=accumulation_dtype(p.dtype), device=p.device) for n, p in parameters.items()}


VANISHED = 2.0**-126
"""The smallest normal number of float32."""


def vanished_squares(rows: Tensor) -> float:
    """Returns what the squares of a row of (B, …) in float32 may lose where they are too small to be normal numbers."""
    return math.prod(rows.shape[1:]) * VANISHED if rows.dtype is torch.float32 else 0.0


BLOCK = 1 << 18
"""Elements squared at once: few enough to stay in cache, and for float32 sums over them to be good to 1e-7. Longer runs
read low, and a low norm breaks the bound."""


def flatten_rows(rows: Tensor) -> Tensor:
    """Returns (B, …) as (B, d) in float32 or better; a scalar parameter has d = 1, an empty lot B = 0."""
    return rows.reshape(rows.shape[0], math.prod(rows.shape[1:])).to(accumulation_dtype(rows.dtype))


def row_squared_norms(rows: Tensor) -> Tensor:
    """Returns Σ x² of each row of gradients (B, …), by arithmetic in float32 or better, block by block."""
    flat = flatten_rows(rows)
    total = torch.zeros(flat.shape[0], dtype=torch.float64, device=flat.device)
    together = max(1, BLOCK // max(1, flat.shape[1]))  # rows
    for start in range(0, flat.shape[0], together):
        for block in flat[start : start + together].split(BLOCK, dim=1):
            total[start : start + together] += block.square().sum(dim=1)
    return total.add_(vanished_squares(flat)).to(flat.dtype)
