"""Noise shares: how layerwise clipping divides its noise among the groups.

The noise s_k on group k follows from its bound C_k and its size d_k.

A sum whose group k one record moves by at most C_k, under noise of standard deviation s_k on that group, is a Gaussian
release of multiplier σ with 1/σ² = Σ C_k²/s_k². So for a given σ

    Isotropic     s_k = σ √(Σ C_j²)                       the same noise on every coordinate
    EqualShare    s_k = σ √K · C_k                         every group takes the same part of the budget
    LeastNoise    s_k = σ √((C_k/√d_k) · Σ C_j √d_j)       the least Σ d_k s_k², the total variance
    Multipliers   s_k ∝ σ_k C_k                            given, layer by layer

Privacy: nothing is assumed about σ. Group k is multiplied by a public a_k, the noise of the whole release is put on the
product, and a_k divided out again after the release. The a_k are scaled so that Σ (a_k C_k)² = Σ C_k²: the sensitivity
given to the release is that of what is released, whichever division was chosen.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from sordino import validate
from sordino.registry import Declaration


class Share(Protocol):
    """A way to divide the noise among the groups."""

    def relative_noise(self, bounds: Sequence[float], sizes: Sequence[int]) -> list[float]:
        """Returns the noise of each group, up to a common factor."""
        ...


@dataclass(frozen=True)
class Isotropic:
    """Puts equal noise on every coordinate.

    Privacy:
        The usual Gaussian mechanism on the whole vector.

    Examples:
        >>> import sordino as sd
        >>> sd.clipping.Isotropic()
        Isotropic()

    """

    def relative_noise(self, bounds: Sequence[float], sizes: Sequence[int]) -> list[float]:
        """Returns 1 for every group."""
        return [1.0] * len(bounds)


@dataclass(frozen=True)
class EqualShare:
    """Puts noise on each group in proportion to its bound.

    Privacy:
        Every group has the same multiplier, so that each is one release of the same cost.

    Examples:
        >>> import sordino as sd
        >>> sd.Layerwise([1.0, 0.5], share=sd.EqualShare())
        Layerwise(bounds=(1.0, 0.5), share=EqualShare())

    """

    def relative_noise(self, bounds: Sequence[float], sizes: Sequence[int]) -> list[float]:
        """Returns C_k for every group."""
        return list(bounds)


@dataclass(frozen=True)
class LeastNoise:
    """Divides the noise so that its total variance is least.

    Privacy:
        The same cost as any other share, with the least noise in total.

    Examples:
        >>> import sordino as sd
        >>> sd.Layerwise([1.0, 0.5], share=sd.LeastNoise())
        Layerwise(bounds=(1.0, 0.5), share=LeastNoise())

    """

    def relative_noise(self, bounds: Sequence[float], sizes: Sequence[int]) -> list[float]:
        """Returns √(C_k/√d_k) for every group, from Lagrange's condition d_k s_k ∝ C_k²/s_k³."""
        return [math.sqrt(c / math.sqrt(max(d, 1))) for c, d in zip(bounds, sizes, strict=True)]


@dataclass(frozen=True)
class Multipliers:
    """Puts noise of its own multiplier σ_k on every group, in the order of the bounds.

    Args:
        values: one multiplier per group.

    Privacy:
        Each group is one more release about the same records: 1/σ² = Σ 1/σ_k².

    Examples:
        >>> import sordino as sd
        >>> round(sd.clipping.Multipliers((2.0, 2.0)).effective, 4)
        1.4142

    """

    values: tuple[float, ...]

    def __post_init__(self) -> None:
        values = validate.sequence("values", self.values, "a noise multiplier for each group")
        object.__setattr__(self, "values", tuple(validate.positive("multipliers", value) for value in values))

    @property
    def effective(self) -> float:
        """The multiplier of the whole release: 1/σ² = Σ 1/σ_k²."""
        return 1 / math.sqrt(math.fsum(1 / value**2 for value in self.values))

    def relative_noise(self, bounds: Sequence[float], sizes: Sequence[int]) -> list[float]:
        """Returns σ_k C_k for every group."""
        return [value * c for value, c in zip(self.values, bounds, strict=True)]


def noise_units(share: Share, bounds: Sequence[float], sizes: Sequence[int]) -> list[float]:
    """Returns the groups' shares of the noise in layerwise clipping, a_k ∝ 1/s_k with Σ (a_k C_k)² = Σ C_k²; 1 for
    every group if a bound is infinite, so that no noise is allowed.
    """
    # Without finite bounds there is no noise to divide.
    if not all(map(math.isfinite, bounds)):
        return [1.0] * len(bounds)
    # Units are inverse to the wanted noise, and scaled so that the sensitivity in units stays √(Σ C_k²).
    inverse = [1 / noise for noise in share.relative_noise(bounds, sizes)]
    unscaled = math.fsum((a * c) ** 2 for a, c in zip(inverse, bounds, strict=True))
    factor = math.sqrt(math.fsum(c * c for c in bounds) / unscaled)
    return [factor * a for a in inverse]


DECLARED = Declaration((EqualShare, LeastNoise))
