"""Global clipping (Bu, Wang & Long 2021, arXiv:2106.07830): one factor for all gradients.

Gradients up to a public threshold Z are scaled by one factor, longer ones are dropped:

    φ(r) = C / Z  for r ≤ Z,  0 otherwise

Privacy: φ(r)·r ≤ C for every r. The threshold is public; a factor taken from the lot, such as C / max r, has no proof.
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
class Global(Stateless):
    """Scales every gradient of norm at most `threshold` by bound / threshold; drops the longer ones.

    Args:
        bound: the length C that a gradient of length `threshold` gets.
        threshold: longer gradients are dropped.

    Privacy:
        Kept gradients are at most `threshold` long and are scaled by `bound` / `threshold`: one record moves the
        sum by at most `bound`.

    Examples:
        >>> import torch, sordino as sd
        >>> lengths = sd.per_sample.Norms(torch.tensor([[0.25], [4.0], [64.0]]), ("weight",))  # squares of 0.5, 2 and 8
        >>> sd.Global(1.0, threshold=4.0).rule(None, lambda: lengths).weights(lengths).flatten()
        tensor([0.2500, 0.2500, 0.0000])

    """

    bound: float
    threshold: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound, infinite=True))
        object.__setattr__(self, "threshold", validate.positive("threshold", self.threshold, infinite=True))
        if math.isinf(self.bound) != math.isinf(self.threshold):
            raise ValueError(f"bound={self.bound}, threshold={self.threshold}: both finite, or both infinite")

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule of global clipping for this step. It is the same at every step, because bound and threshold
        are constant.
        """
        # factor = C/Z: whoever is within Z has length at most C after it.
        factor = 1.0 if math.isinf(self.bound) else self.bound / self.threshold

        def weights(norms: Norms) -> Tensor:
            # Longer gradients are left out altogether, which is what lets all others share one factor.
            r = norms.total()
            return torch.where(r <= self.threshold, torch.full_like(r, factor), 0).unsqueeze(1)

        return Rule(weights, Sensitivity(l2=self.bound))


DECLARED = Declaration(
    (Global,),
    methods=(
        Method(
            "global",
            "one factor for gradients up to a threshold, nothing above it (Bu, Wang & Long 2021)",
            clipping=lambda run, own: Global(run.bound, own["threshold"]),
            parameters=lambda run: {"threshold": 10 * run.bound},
            example="sd.Global(bound=1.0, threshold=5.0)",
        ),
    ),
)
