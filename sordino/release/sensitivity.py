"""Sensitivity: how far one record can move a sum, or why no bound is known.

Noise is scaled in proportion to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from sordino.release.rounding import rounding_slack


@dataclass(frozen=True)
class Exact:
    """The norms are those of the gradients, up to rounding."""


@dataclass(frozen=True)
class FromProjections:
    """The norms are estimated from random directions: squared, each is the true one times χ²_r/r, r = `projections`."""

    projections: int


Estimate = Exact | FromProjections

EXACT = Exact()
LEAST = rounding_slack(0)
"""Rounding of a record's own norm."""
Units = Callable[[Mapping[str, int]], Mapping[str, float]]
"""A function from the sizes of tensors to a factor for each."""


@dataclass(frozen=True)
class Sensitivity:
    """How far one record can move a sum: in L2, and in L1 where a clipping rule bounds that too.

    An L1 bound that was proved for at most so many coordinates says so in `dimension`; a longer sum is refused.
    """

    l2: float
    l1: float | None = None
    dimension: int | None = None
    units: Units | None = None
    """Public factors the tensors are multiplied by before noise and divided by after: `l2` is that of the products."""
    estimate: Estimate = EXACT
    """How the norms were obtained that the bound was kept by: `l2` is the reach if they are exact."""
    rounding: float = LEAST
    """The relative amount by which a record may move the sum further because it was rounded (`rounding.slack`)."""


@dataclass(frozen=True)
class Unproven:
    """No bound is known, and why; noise is added at `scale` all the same, and the event is NonPrivate."""

    reason: str
    scale: float
