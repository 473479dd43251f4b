"""Flat clipping (Abadi et al. 2016): every gradient is shortened to at most C.

    φ(r) = min(1, C / r)

Privacy: φ(r)·r ≤ C for every r, so one record moves the sum by at most C in L2.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from sordino import validate
from sordino.gradients.persample import Norms
from sordino.noise import Sensitivity
from sordino.weigh.weigher import Rule, State, Stateless


def shorten(norms: Tensor, bound: float | Tensor) -> Tensor:
    """min(1, C / r), with 1 at r = 0 and for an infinite bound."""
    return (bound / norms).clamp(max=1.0).nan_to_num(nan=1.0)


@dataclass(frozen=True)
class Flat(Stateless):
    """Clip the whole gradient of each sample to `bound`; infinity means no clipping and allows no noise."""

    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound, infinite=True))

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """The same at every step."""
        return Rule(lambda norms: shorten(norms.total(), self.bound).unsqueeze(1), Sensitivity(l2=self.bound))
