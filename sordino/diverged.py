"""Training that left the finite numbers: the run ends, with all its records.

Privacy: only public values are looked at: the parameters, which are made of releases, and what was released. Losses and
gradients of single records are private, and one that is not finite is dropped without a word.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Diverged:
    """At which step, counted from 0, and what was not finite after it.

    >>> print(Diverged(17, "parameter '0.weight'"))
    training diverged at step 17: parameter '0.weight' is not finite
    """

    step: int
    what: str

    def __str__(self) -> str:
        return f"training diverged at step {self.step}: {self.what} is not finite"


def not_finite(tensors: Mapping[str, Tensor] | Iterable[tuple[str, Tensor]]) -> str | None:
    """The name of the first tensor that holds something else than finite numbers."""
    named = dict(tensors)
    if not named:
        return None
    with torch.no_grad():
        # One cheap pass: a sum that is finite has finite terms. Finite terms may overflow a sum, so look again then.
        if all(total.isfinite() for total in [tensor.sum() for tensor in named.values()]):
            return None
        return next((name for name, tensor in named.items() if not tensor.isfinite().all()), None)
