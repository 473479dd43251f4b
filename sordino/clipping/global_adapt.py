"""Global clipping that drops nobody (Esipova et al. 2023, arXiv:2206.07737).

Gradients up to a threshold Z are scaled by one factor, longer ones are clipped to C:

    φ(r) = C / max(r, Z)

As published, Z follows the share of gradients above it: AdaptiveQuantile(Z, …, clipping=partial(GlobalAdapt, C)).

Privacy: φ(r)·r = C·r / max(r, Z) ≤ C for every r, so one record moves the sum by at most C in L2.
"""

from __future__ import annotations

import math
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
class GlobalAdapt(Stateless):
    """Scales every gradient of norm at most `threshold` by bound / threshold; shortens the longer ones to `bound`.

    Args:
        bound: the length C that no gradient exceeds afterwards.
        threshold: gradients up to this length keep their proportions.

    Privacy:
        One record moves the sum by at most `bound`.

    Examples:
        >>> import torch, sordino as sd
        >>> lengths = sd.per_sample.Norms(torch.tensor([[0.25], [4.0], [64.0]]), ("weight",))  # squares of 0.5, 2 and 8
        >>> sd.GlobalAdapt(1.0, threshold=4.0).rule(None, lambda: lengths).weights(lengths).flatten()
        tensor([0.2500, 0.2500, 0.1250])

    """

    bound: float
    threshold: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound, infinite=True))
        object.__setattr__(self, "threshold", validate.positive("threshold", self.threshold, infinite=True))
        if math.isinf(self.bound) != math.isinf(self.threshold):
            raise ValueError(f"bound={self.bound}, threshold={self.threshold}: both finite, or both infinite")

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule of adaptive global clipping for this step. It is the same at every step, because bound and
        threshold are constant.
        """

        def weights(norms: Norms) -> Tensor:
            """Returns the weights of adaptive global clipping, (B, 1), which drop nobody: C over the larger of norm and
            threshold.
            """
            r = norms.total()
            # An infinite bound means no clipping: every record counts as it is.
            if math.isinf(self.bound):
                return torch.ones_like(r).unsqueeze(1)
            # Long gradients are scaled to length C, and all others by the same factor C/Z; so weight · norm ≤ C for
            # every norm.
            return torch.div(self.bound, r.clamp(min=self.threshold)).unsqueeze(1)

        return Rule(weights, Sensitivity(l2=self.bound))


DECLARED = Declaration(
    (GlobalAdapt,),
    methods=(
        Method(
            "global-adapt",
            "one factor for gradients up to a threshold, the bound above it (Esipova et al. 2023)",
            clipping=lambda run, own: GlobalAdapt(run.bound, own["threshold"]),
            parameters=lambda run: {"threshold": 10 * run.bound},
            example="sd.GlobalAdapt(bound=1.0, threshold=5.0)",
        ),
    ),
)
