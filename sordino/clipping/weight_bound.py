"""Bounds a rule's weights so that w_i · ‖g_i‖ ≤ C for every row, whatever the rule says.

A rule promises a reach C. Here the promise is kept: the reach of each row is computed from the norms the rule was given
and the weights it gave back, and a row beyond C is scaled down until it meets it. A weight that is not a finite number
≥ 0 becomes 0. With `units` the reach is that of the products, as the release counts it. An L1 bound holds if √dimension
· L2 does.

Privacy: this makes the formula of a clipping rule a matter of usefulness alone. What is left to its word is that a
row's weight looks at that row only, and `row_by_row` tries that.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from sordino.kernels.matrices import load_functions
from sordino.per_sample.protocol import Norms
from sordino.release.sensitivity import Sensitivity

FLOOR = 1e-18
"""Added to every norm here: a gradient whose squares vanish in float32 is not longer, so no weight lifts it over C."""

_ROUNDED = 1e-6
"""The relative error of a few roundings: a weight C / r times r may exceed C by it, and such a row is left as it is."""

_COMPILED_UP_TO = 1 << 14
"""Number of records up to which one compiled call is faster than five of torch's."""

Sizes = Callable[[], Mapping[str, int]]


def bound_weights(weights: Tensor, norms: Norms, sensitivity: Sensitivity, sizes: Sizes) -> Tensor:
    """Returns the weights, (B, 1) or (B, P), with the rows that reach further than promised scaled down.

    `sizes` gives the number of elements of each tensor; it is asked only where the sensitivity has units.
    """
    if not weights.numel():
        return weights
    largest_reach = largest_l2_reach(sensitivity)
    # The common case first: nearly always every row keeps the bound, and one call shows it.
    if _is_surely_within(weights, norms, sensitivity, largest_reach * (1 + _ROUNDED)):
        return weights
    if weights.is_cpu:  # what follows leaves such weights as they are; a device is not waited for to see that
        low, high = torch.aminmax(
            compute_reaches(weights, norms, sensitivity, sizes)
        )  # of what is not a number both are not
        if low.item() >= 0 and high.item() <= largest_reach * (1 + _ROUNDED):
            return weights
    # Otherwise mend row by row: an improper weight becomes 0, and a reach beyond the bound is scaled down to it.
    proper = ((weights >= 0) & torch.isfinite(weights)).all(dim=1, keepdim=True)
    kept = torch.where(proper, weights, 0)
    reach = compute_reaches(kept, norms, sensitivity, sizes).double()
    shorter = torch.where(
        reach <= largest_reach * (1 + _ROUNDED), 1.0, largest_reach / reach
    )  # 0 of an infinite reach, 1 of none
    return torch.where(reach.isfinite().unsqueeze(1), kept * shorter.to(kept.dtype).unsqueeze(1), 0)


def _is_surely_within(weights: Tensor, norms: Norms, sensitivity: Sensitivity, largest_reach: float) -> bool:
    """Returns whether one compiled call shows that all rows are within the bound; False settles nothing."""
    compiled = load_functions()
    if compiled is None or weights.shape[1] != 1 or sensitivity.units is not None:
        return False
    both = (norms.sums, weights)
    return compiled.are_readable(both, _COMPILED_UP_TO) and compiled.is_within_bound(
        weights, norms.sums, FLOOR, largest_reach
    )


def largest_l2_reach(sensitivity: Sensitivity) -> float:
    """Returns the largest L2 reach that keeps every bound of the promise."""
    if sensitivity.l1 is None or sensitivity.dimension is None:
        return sensitivity.l2
    return min(sensitivity.l2, sensitivity.l1 / math.sqrt(sensitivity.dimension))


def compute_reaches(weights: Tensor, norms: Norms, sensitivity: Sensitivity, sizes: Sizes) -> Tensor:
    """Returns √(Σ_p (a_p w_ip r_ip)²), shape (B,): negative or not a number where a weight is."""
    if weights.shape[1] == 1 and sensitivity.units is None:
        return weights[:, 0] * norms.total().add_(FLOOR)
    # √(Σ_p (a_p w_p r_p)²): with units the release counts the products.
    by_tensor = weights * norms.squared.sqrt().add_(FLOOR)  # (B, P)
    if sensitivity.units is not None:
        factors = sensitivity.units(sizes())
        by_tensor = by_tensor * by_tensor.new_tensor([factors[name] for name in norms.names])
    lengths: Tensor = torch.linalg.vector_norm(by_tensor, dim=1)
    if not by_tensor.shape[1]:
        return lengths
    # A negative weight would vanish in the square, so it is returned as it is, and the caller sets it to 0.
    least = by_tensor.amin(dim=1)
    return torch.where(least >= 0, lengths, least)
