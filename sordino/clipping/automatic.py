"""Automatic clipping (Bu et al. 2022, arXiv:2206.07136): normalises every gradient to almost C.

    φ(r) = C / (r + γ)        r: length of a record's gradient

Short gradients are stretched a little less.

Privacy: φ(r)·r = C·r/(r+γ) < C for every r and every γ ≥ 0, so one record moves the sum by less than C in L2.
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


@dataclass(frozen=True)
class Automatic(Stateless):
    """Normalises each gradient to almost `bound`; `gamma` keeps the weight of short ones finite.

    Args:
        bound: the length C that every gradient nearly gets.
        gamma: lengths well below it are not stretched as far.

    Privacy:
        One record moves the sum by less than `bound`, for every `gamma`.

    Examples:
        >>> import torch, sordino as sd
        >>> lengths = sd.per_sample.Norms(torch.tensor([[0.25], [4.0], [64.0]]), ("weight",))  # squares of 0.5, 2 and 8
        >>> sd.Automatic(1.0).rule(None, lambda: lengths).weights(lengths).flatten()
        tensor([1.9608, 0.4975, 0.1248])

    """

    bound: float
    gamma: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound))
        object.__setattr__(self, "gamma", validate.positive("gamma", self.gamma))

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule of automatic clipping for this step. It is the same at every step, because the bound is
        constant.
        """

        def weights(norms: Norms) -> Tensor:
            # weight(r) · r = C r / (r + γ) < C.
            return torch.div(self.bound, norms.total() + self.gamma).unsqueeze(1)

        return Rule(weights, Sensitivity(l2=self.bound))


DECLARED = Declaration(
    (Automatic,),
    methods=(
        Method(
            "automatic",
            "every gradient normalised to the bound (Bu et al. 2022)",
            clipping=lambda run, own: Automatic(run.bound, own["gamma"]),
            parameters=lambda run: {"gamma": 0.01},
            example="sd.Automatic(bound=1.0)",
        ),
    ),
)
