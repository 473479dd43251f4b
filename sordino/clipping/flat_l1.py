"""Flat clipping in L1, for Laplace noise: DP gradient descent with pure ε.

For d = 1 this is the scalar form of the textbooks.

    φ(r) = min(1, C / (√d · r)),  r the L2 norm, d the number of trainable parameters

Privacy: ‖g‖₁ ≤ √d ‖g‖₂ (Cauchy–Schwarz), so ‖φ(r) g‖₁ ≤ √d φ(r) r ≤ C. For one parameter this is the clip itself; for
many it shortens more than an L1 norm would need, and Gaussian noise with `Flat` is the better choice. The release
refuses a sum with more coordinates than d.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from sordino import validate
from sordino.clipping.clipping_rule import Rule, State, Stateless
from sordino.clipping.flat import shorten
from sordino.per_sample.protocol import Norms
from sordino.registry import Declaration, Method
from sordino.release.sensitivity import Sensitivity


@dataclass(frozen=True)
class FlatL1(Stateless):
    """Clips each gradient to an L1 norm of at most `bound`, for models of at most `dimension` trainable numbers.

    Args:
        bound: the L1 length that no gradient exceeds afterwards.
        dimension: at most so many trainable numbers; refused for larger models.

    Privacy:
        One record moves the sum by at most `bound` in L1, which is what `Laplace` noise is in proportion to.

    Examples:
        >>> import sordino as sd
        >>> sd.NoisySum(sd.FlatL1(1.0, dimension=100), sd.Laplace(2.0)).noise
        Laplace(multiplier=2.0)

    """

    bound: float
    dimension: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound, infinite=True))
        object.__setattr__(self, "dimension", validate.count("dimension", self.dimension))

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule of flat clipping in L1 for this step. It is the same at every step, because the bound is
        constant.
        """
        l2 = self.bound / math.sqrt(self.dimension)
        sensitivity = Sensitivity(l2=l2, l1=self.bound, dimension=self.dimension)
        return Rule(lambda norms: shorten(norms.total(), l2).unsqueeze(1), sensitivity)


DECLARED = Declaration(
    (FlatL1,),
    methods=(
        Method(
            "flat-l1",
            "every gradient shortened until its L1 norm keeps to the bound: for Laplace noise",
            clipping=lambda run, own: FlatL1(run.bound, run.trainable_numbers),
            example="sd.FlatL1(bound=1.0, dimension=41)",
        ),
    ),
)
