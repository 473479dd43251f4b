"""Comparison of passes: whether two passes over the same records agree, for all but one.

Rows are compared by their losses, by the lengths of their gradients, and by one sum of their directions with random signs,
which moves if any of them turns. What is far below the usual length counts by that: a gradient that is nothing but rounding
has no direction of its own.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from sordino.rng.global_generators import NextDraws

_FLOOR = 0.05
"""Lengths and losses below this share of the usual one are compared as if they had it."""
NOTHING = 1e-12
"""Lengths and losses of about this size and below are nothing: no bound is so small that they could matter."""


@dataclass(frozen=True)
class PassResult:
    """What one pass over a batch showed."""

    losses: Tensor  # (B,)
    lengths: Tensor  # (B,)
    total: Mapping[str, Tensor]  # Σ of the watched rows' directions, with the signs and lengths of the first pass
    drawn: bool  # from a global generator, on the way
    ended: NextDraws  # what the generators would have drawn next
    shapes: tuple[tuple[int, ...], ...]  # of the batch


def direction_weights(lengths: Tensor, signs: Tensor, watched: Tensor) -> Tensor:
    """Returns the weights (B, 1) by which two passes are compared in the directions of their gradients: every watched
    row gets about unit length, with its sign.

    Rows that are not finite get 0.
    """
    fine = lengths.isfinite() & watched
    usual = float(lengths[fine].median()) if bool(fine.any()) else 1.0
    weights = signs / (lengths + _FLOOR * usual + NOTHING)
    return torch.where(fine, weights, 0.0).unsqueeze(1)


def measure_disagreement(one: PassResult, other: PassResult, watched: Tensor) -> float:
    """Compares two passes over the same records: returns the largest relative difference over the watched rows.

    It is infinite where one value is finite and the other is not.
    """
    worst = max(
        _largest_row_difference(one.losses, other.losses, watched),
        _largest_row_difference(one.lengths, other.lengths, watched),
    )
    counted = max(1.0, math.sqrt(float((watched & one.lengths.isfinite()).sum())))
    return max(worst, distance_between(one.total, other.total) / counted)


def _largest_row_difference(one: Tensor, other: Tensor, watched: Tensor) -> float:
    """Compares the watched rows of two passes: returns the largest relative difference of their losses or lengths."""
    a, b = one[watched].double(), other[watched].double()
    fine, also = a.isfinite(), b.isfinite()
    if not torch.equal(fine, also):
        return float("inf")
    a, b = a[fine], b[fine]
    if not len(a):
        return 0.0
    size = torch.maximum(a.abs(), b.abs())
    floor = _FLOOR * float(size.median()) + NOTHING
    return float(((a - b).abs() / (size + floor)).max())


def distance_between(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> float:
    """Compares the gradients of two passes: returns ‖one − other‖ over all tensors."""
    differ = [a - b for a, b in ((one[name], other[name]) for name in one) if not torch.equal(a, b)]  # seldom any
    far = norm_of(dict(enumerate(differ)))
    return float("inf") if far != far else far


def norm_of(one: Mapping[Any, Tensor]) -> float:
    """Returns ‖one‖ over all tensors."""
    return math.hypot(*(float(torch.linalg.vector_norm(each, dtype=torch.float64)) for each in one.values()))
