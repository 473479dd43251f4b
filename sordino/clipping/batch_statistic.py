"""Clipping to a statistic of the lot's own gradient lengths, which has no guarantee.

Pflaeging 2023, *Varianten von DPSGD*, ch. 4; Abadi et al. 2016 (arXiv:1607.00133) mention the median.

    C = min(statistic of the lengths in the lot, cap),   then φ(r) = min(1, C / r)

Without a cap long gradients raise the bound, the bound raises the noise, and training diverges, as was found there.

Privacy: none. The bound, and with it every sample's weight and the noise, depends on all samples of the lot, and
nothing bounds how far one of them moves the sum. `Scheduled` and `AdaptiveQuantile` are the forms that have a
guarantee.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from sordino import validate
from sordino.clipping.clipping_rule import Rule, State, Stateless
from sordino.clipping.flat import shorten
from sordino.per_sample.protocol import Norms
from sordino.registry import Declaration, Method
from sordino.release.sensitivity import Unproven

Statistic = Callable[[Tensor], Tensor]
"""A function from the lengths in a lot, at least one, to a number."""


@dataclass(frozen=True)
class BatchStatistic(Stateless):
    """Clips to a statistic of the lot's own lengths, at most `cap`; made by `median`, `minimum` or `mean`.

    Privacy:
        None: the bound is made of the lengths of the lot itself. The claim is a `NoGuarantee` that says so.

    Examples:
        >>> BatchStatistic.median(cap=5.0)
        BatchStatistic(name='median', cap=5.0)

    """

    name: str
    cap: float

    def __post_init__(self) -> None:
        if self.name not in _STATISTICS:
            raise ValueError(f"name={self.name!r}: must be one of {', '.join(_STATISTICS)}")
        object.__setattr__(self, "cap", validate.positive("cap", self.cap, infinite=True))

    @staticmethod
    def median(cap: float) -> BatchStatistic:
        """Returns the rule that clips to a statistic of the batch, the median length, of two middle ones the shorter;
        an infinite cap means none.
        """
        return BatchStatistic("median", cap)

    @staticmethod
    def minimum(cap: float) -> BatchStatistic:
        """Returns the rule with the shortest length for a bound: afterwards all gradients are equally long."""
        return BatchStatistic("minimum", cap)

    @staticmethod
    def mean(cap: float) -> BatchStatistic:
        """Returns the rule with the mean length for a bound, which outliers pull up; Pflaeging calls it unsuitable."""
        return BatchStatistic("mean", cap)

    def bound_for(self, lengths: Tensor) -> float:
        """Returns the bound for a lot, a statistic of its finite lengths; infinite if there are none, and at most the
        cap.

        An empty lot has no statistic, so its bound is the cap, or 0 without one.
        """
        if not len(lengths):
            return self.cap if math.isfinite(self.cap) else 0.0
        finite = lengths[lengths.isfinite()]
        return min(self.cap, float(_STATISTICS[self.name](finite)) if len(finite) else math.inf)

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns flat clipping at a statistic of the lot's own lengths, which is unproven because it looks at the
        whole lot.
        """
        # Looking at the lot is what makes this rule unproven: one record moves the bound of all others.
        bound = self.bound_for(lot().total())
        reason = (
            f"the bound was the {self.name} of the lot's own gradient lengths: one record changes it for all others"
        )
        return Rule(lambda norms: shorten(norms.total(), bound).unsqueeze(1), Unproven(reason, bound))


_STATISTICS: dict[str, Statistic] = {"median": torch.median, "minimum": torch.min, "mean": torch.mean}


DECLARED = Declaration(
    (BatchStatistic,),
    methods=(
        Method(
            "batch-median",
            "the bound is the median length of the lot: no guarantee",
            clipping=lambda run, own: BatchStatistic.median(own["cap"]),
            parameters=lambda run: {"cap": run.bound},
            example="sd.BatchStatistic.median(cap=5.0)",
        ),
        Method(
            "batch-minimum",
            "the bound is the least length of the lot: no guarantee",
            clipping=lambda run, own: BatchStatistic.minimum(own["cap"]),
            parameters=lambda run: {"cap": run.bound},
            example="sd.BatchStatistic.minimum(cap=5.0)",
        ),
        Method(
            "batch-mean",
            "the bound is the mean length of the lot: no guarantee",
            clipping=lambda run, own: BatchStatistic.mean(own["cap"]),
            parameters=lambda run: {"cap": run.bound},
            example="sd.BatchStatistic.mean(cap=5.0)",
        ),
    ),
)
