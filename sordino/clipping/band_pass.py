"""Band-pass clipping: leaves short gradients out and shortens long ones.

It trains on the records with long gradients, with a guarantee.

    φ(r) = min(1, C / r) · 1{r ≥ τ}

Choosing the records with the longest gradients looks at all of them and has no guarantee; a public threshold that each
record meets on its own does the same work.

Privacy: φ(r)·r is min(r, C) or 0, so one record moves the sum by at most C in L2; τ is public.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import Rule, State, Stateless
from sordino.clipping.flat import shorten
from sordino.per_sample.protocol import Norms
from sordino.registry import Declaration, Method
from sordino.release.sensitivity import Sensitivity


@dataclass(frozen=True)
class BandPass(Stateless):
    """Clips to `bound` the gradients of norm at least `threshold`; the others count nothing.

    Args:
        bound: the length C that no gradient exceeds afterwards.
        threshold: shorter gradients count nothing.

    Privacy:
        A record's own length decides whether it counts, so it moves the sum by at most `bound`.

    Examples:
        >>> import torch, sordino as sd
        >>> lengths = sd.per_sample.Norms(torch.tensor([[0.25], [4.0], [64.0]]), ("weight",))  # squares of 0.5, 2 and 8
        >>> sd.BandPass(1.0, threshold=1.0).rule(None, lambda: lengths).weights(lengths).flatten()
        tensor([0.0000, 0.5000, 0.1250])

    """

    bound: float
    threshold: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound, infinite=True))
        object.__setattr__(self, "threshold", validate.non_negative("threshold", self.threshold))

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule of band-pass clipping for this step. It is the same at every step, because bound and
        threshold are constant.
        """

        def weights(norms: Norms) -> Tensor:
            # Below the threshold a record counts nothing; above it, it is clipped to C. Either way weight · norm ≤ C.
            r = norms.total()
            return torch.where(r >= self.threshold, shorten(r, self.bound), 0).unsqueeze(1)

        return Rule(weights, Sensitivity(l2=self.bound))


DECLARED = Declaration(
    (BandPass,),
    methods=(
        Method(
            "band-pass",
            "gradients below a threshold are left out, the others shortened to the bound",
            clipping=lambda run, own: BandPass(run.bound, own["threshold"]),
            parameters=lambda run: {"threshold": run.bound / 2},
            example="sd.BandPass(bound=1.0, threshold=0.5)",
        ),
    ),
)
