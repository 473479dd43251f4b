"""Normalised gradients: every record counts with length C, however short its gradient was.

    φ(r) = C / max(r, r₀)

Privacy: φ(r)·r ≤ C for every r, so one record moves the sum by at most C in L2. The floor r₀ is there for floating
point: squares of very small numbers are rounded to zero, a norm then reads too short, and C / r would lift the gradient
over C.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import Rule, State, Stateless
from sordino.per_sample.protocol import Norms
from sordino.registry import Declaration, Method
from sordino.release.sensitivity import Sensitivity

FLOOR = 1e-12
"""r₀: what float32 squares lose is below 1e-23 an element, below 1e-18 for any model."""


@dataclass(frozen=True)
class Normalised(Stateless):
    """Stretches or shortens each gradient to `bound`.

    Args:
        bound: the length C that every gradient gets.

    Privacy:
        One record moves the sum by exactly `bound`, or not at all where its gradient is 0.

    Examples:
        >>> import torch, sordino as sd
        >>> lengths = sd.per_sample.Norms(torch.tensor([[0.25], [4.0], [64.0]]), ("weight",))  # squares of 0.5, 2 and 8
        >>> sd.Normalised(1.0).rule(None, lambda: lengths).weights(lengths).flatten()
        tensor([2.0000, 0.5000, 0.1250])

    """

    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound))

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule of normalised gradients for this step. It is the same at every step, because the bound is
        constant.
        """

        def weights(norms: Norms) -> Tensor:
            # Every gradient gets length C; the floor keeps the weight of a zero gradient finite.
            return torch.div(self.bound, norms.total().clamp(min=FLOOR)).unsqueeze(1)

        return Rule(weights, Sensitivity(l2=self.bound))


DECLARED = Declaration(
    (Normalised,),
    methods=(
        Method(
            "normalised",
            "every gradient stretched or shortened to the bound",
            clipping=lambda run, own: Normalised(run.bound),
            example="sd.Normalised(bound=1.0)",
        ),
    ),
)
