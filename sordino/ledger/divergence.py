"""Training that left the finite numbers: the run ends, with all its records.

Privacy: only public values are looked at: the parameters, which are made of releases, and what was released. Losses and
gradients of single records are private, and one that is not finite is dropped without a word.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino.accelerations import accelerate
from sordino.distributed.row_shard import local_rows


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


def all_finite(tensors: Sequence[Tensor]) -> bool:
    """Returns whether every number of these tensors is finite, as far as this rank has them."""
    return are_all_finite([local_rows(tensor) for tensor in tensors])


@accelerate
def are_all_finite(tensors: Sequence[Tensor]) -> bool:
    """Returns whether training has not diverged: every number of these tensors is finite, in one pass, because a sum
    that is finite has finite terms.
    """
    with torch.no_grad():
        sums = [tensor.sum() for tensor in tensors]
        all_alike = bool(sums) and len({(t.device, t.dtype) for t in sums}) == 1  # a device is waited for once
        return math.isfinite(float(torch.stack(sums).double().sum()) if all_alike else sum(map(float, sums)))


def first_not_finite(tensors: Mapping[str, Tensor]) -> str | None:
    """Returns the name of the first tensor that holds something else than finite numbers after a divergence, or None."""
    if all_finite(list(tensors.values())):
        return None
    return next(
        (name for name, tensor in tensors.items() if not local_rows(tensor).isfinite().all()), None
    )  # sums may overflow
