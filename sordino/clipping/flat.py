"""Flat clipping (Abadi et al. 2016, arXiv:1607.00133): shortens every gradient to at most C.

    φ(r) = min(1, C / r)

Privacy: φ(r)·r ≤ C for every r, so one record moves the sum by at most C in L2.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sordino import validate
from sordino.accelerations import accelerate
from sordino.clipping.clipping_rule import Rule, State, Stateless
from sordino.per_sample.protocol import Norms
from sordino.registry import Declaration, Method
from sordino.release.sensitivity import Sensitivity

_ONE = torch.ones(())


def _one_like(tensor: Tensor) -> Tensor:
    """Returns the number 1 where a tensor is; made there, because a copy from the host would be waited for."""
    return _ONE.to(tensor) if tensor.is_cpu else tensor.new_ones(())


def shorten(norms: Tensor, bound: float | Tensor) -> Tensor:
    """Returns the weights of flat clipping, min(1, C / r), with 1 at r = 0 and for an infinite bound.

    Of 1 and what is not a number, `fmin` takes 1.
    """
    ratio = bound / norms if isinstance(bound, Tensor) else norms.reciprocal().mul_(bound)
    return torch.fmin(ratio, _one_like(ratio))


@accelerate
def clip_by_squares(squared: Tensor, bound: float) -> Tensor:
    """Returns the weights of flat clipping, min(1, C / √s), from squared norms s, without taking roots."""
    if not squared.is_cpu and math.isfinite(bound):
        return squared.rsqrt().mul_(bound).clamp_(max=1.0)  # the same numbers with one launch less
    return torch.fmin(squared.rsqrt().mul_(bound), _one_like(squared))


@dataclass(frozen=True)
class Flat(Stateless):
    """Clips the whole gradient of each record to `bound`; infinity means no clipping and allows no noise.

    Args:
        bound: the length C that no gradient exceeds afterwards.

    Privacy:
        One record moves the sum by at most `bound`. The clipping rule itself releases nothing.

    Examples:
        >>> import torch, sordino as sd
        >>> lengths = sd.per_sample.Norms(torch.tensor([[0.25], [4.0], [64.0]]), ("weight",))  # squares of 0.5, 2 and 8
        >>> sd.Flat(1.0).rule(None, lambda: lengths).weights(lengths).flatten()
        tensor([1.0000, 0.5000, 0.1250])

    """

    bound: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "bound", validate.positive("bound", self.bound, infinite=True))

    def rule(self, state: State, lot: Callable[[], Norms]) -> Rule:
        """Returns the rule for this step. It is the same at every step, because the bound is constant."""
        return self._rule

    @cached_property
    def _rule(self) -> Rule:
        return Rule(lambda norms: clip_by_squares(norms.sums, self.bound).unsqueeze(1), Sensitivity(l2=self.bound))


DECLARED = Declaration(
    (Flat,),
    methods=(
        Method(
            "dpsgd",
            "every gradient shortened to the bound (Abadi et al. 2016)",
            clipping=lambda run, own: Flat(run.bound),
            word="flat",
            example="sd.Flat(bound=1.0)",
        ),
    ),
)
