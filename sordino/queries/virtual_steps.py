"""Virtual steps: a step in parts, with the gradient computed again at the end of each.

All parts are computed on the same lot.

The update is Σ_k w_k v_k with Σ w_k = 1, and v_k is the gradient at θ − η Σ_{j<k} w_j v_j / L. With proportion ρ the
virtual steps go 1/ρ of the way, in `rounds` equal parts, and the last part is the rest:

    w = (1/(ρr), …, 1/(ρr), 1 − 1/ρ)        ρ = 2, r = 1: the two halves of ProjectedDPSGD; ρ = (r+1)/r: equal parts

ρ = 1 with one round and ρ = ∞ are a plain step. A part of weight 0 is not asked for.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from sordino import validate
from sordino.release.vectors import Grads
from sordino.schedules import Schedule


def part_weights(rho: float, rounds: int) -> tuple[float, ...]:
    """Returns the weights of the virtual steps, the parts that a query divides a step into.

    >>> part_weights(2.0, 1), part_weights(1.0, 1), part_weights(1.5, 2)
    ((0.5, 0.5), (1.0,), (0.3333333333333333, 0.3333333333333333, 0.33333333333333337))
    """
    # Below 1 the virtual steps would go further than the step itself.
    rho = validate.positive("rho", rho, infinite=True)
    if rho < 1:
        raise ValueError(f"rho={rho}: must be >= 1; the virtual steps go 1/rho of the way")
    rounds = validate.count("rounds", rounds)
    return tuple(w for w in (*[1 / (rho * rounds)] * rounds, 1 - 1 / rho) if w > 0)


def learning_rate_at(learning_rate: float | Schedule, step: int) -> float:
    """Returns the learning rate of a step."""
    return learning_rate(step) if callable(learning_rate) else learning_rate


def check_learning_rate(learning_rate: float | Schedule) -> float | Schedule:
    """Returns a learning rate or a schedule of it; raises ValueError for a negative rate."""
    return learning_rate if callable(learning_rate) else validate.non_negative("learning_rate", learning_rate)


def add_scaled(total: Mapping[str, Tensor], value: Mapping[str, Tensor], factor: float) -> Grads:
    """Returns total + factor · value in new memory, to add up virtual steps; an empty total counts as zero."""
    return {
        name: factor * v if name not in total else torch.add(total[name], v, alpha=factor) for name, v in value.items()
    }
