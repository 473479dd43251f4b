"""Per-sample adaptive clipping, PSAC (Xia et al. 2023, arXiv:2212.00328).

    φ(r) = C / (r + γ/(r + γ))        r: length of a record's gradient

Gradients are normalised, but very short ones are not blown up to length C.

Privacy: φ(r)·r = C·r/(r + γ/(r+γ)) < C for every r and every γ > 0, so one record moves the sum by less than C in L2.
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
class PSAC(Stateless):
    """Normalises each gradient to almost `bound`; below `gamma` the weight stops growing.

    Args:
        bound: the length C that long gradients nearly get.
        gamma: below this length the weight stops growing.

    Privacy:
        One record moves the sum by less than `bound`.

    Examples:
        >>> import torch, sordino as sd
        >>> lengths = sd.per_sample.Norms(torch.tensor([[0.25], [4.0], [64.0]]), ("weight",))  # squares of 0.5, 2 and 8
        >>> sd.PSAC(1.0).rule(None, lambda: lengths).weights(lengths).flatten()
        tensor([1.9245, 0.4988, 0.1250])

    """

    bound: float
    gamma: float = 0.01

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound))
        object.__setattr__(self, "gamma", validate.positive("gamma", self.gamma))

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule of PSAC, per-sample adaptive clipping, for this step. It is the same at every step, because
        the bound is constant.
        """

        def weights(norms: Norms) -> Tensor:
            # weight(r) · r = C r / (r + γ/(r + γ)) < C for every r, because the second term is positive.
            r = norms.total()
            return torch.div(self.bound, r + self.gamma / (r + self.gamma)).unsqueeze(1)

        return Rule(weights, Sensitivity(l2=self.bound))


DECLARED = Declaration(
    (PSAC,),
    methods=(
        Method(
            "psac",
            "normalised, but short gradients are not blown up (Xia et al. 2023)",
            clipping=lambda run, own: PSAC(run.bound, own["gamma"]),
            parameters=lambda run: {"gamma": 0.01},
            example="sd.PSAC(bound=1.0)",
        ),
    ),
)
