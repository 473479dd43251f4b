"""What one record moves the sum at the door by, over the bound, in the library itself: for faults of its own.

Two runs with one seed have the same noise, so their gradients differ by their sums alone. Nothing but the public interface
is used. A run that is refused, or has no claim, promises nothing.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import sordino as sd

Made = Callable[[], nn.Module]


def released(
    make: Made, loss: Any, data: Any, *, bound: float = 1.0, query: Any = None, collate: Any = None, **options: Any
) -> Tensor | None:
    """The released sum of one full lot, flat, in float64; None where there is no claim."""
    model = make()
    physical = options.pop("physical_batch", None)
    query = query or sd.NoisySum(sd.Flat(bound), sd.Gaussian(1.0))
    try:
        private = sd.Private(model, loss, query, seed=5, **options)
        lots = private.draws(
            data, sd.Poisson(1.0), steps=1, expected_batch=1.0, physical_batch=physical, collate=collate
        )
        for lot in lots:
            private.backward(lot)
    except sd.Refusal:
        return None
    if not isinstance(private.claim(1e-5), sd.Guarantee):
        return None
    return torch.cat([p.grad.flatten().double() for p in model.parameters() if p.grad is not None])


def moved(make: Made, loss: Any, here: Any, there: Any, *, bound: float = 1.0, **options: Any) -> float | None:
    """‖S(here) − S(there)‖ over the bound; None where one of them has no claim."""
    one = released(make, loss, here, bound=bound, **options)
    two = released(make, loss, there, bound=bound, **options)
    return None if one is None or two is None else float((one - two).norm()) / bound
