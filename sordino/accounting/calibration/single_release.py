"""Noise for one release at a wanted ε: Laplace and the exponential mechanism. Gaussians are in `gaussian`.

Dwork, McSherry, Nissim & Smith 2006; McSherry & Talwar 2007. **Privacy:** pure ε-DP, δ = 0.
"""

from __future__ import annotations

from sordino import validate


def laplace(epsilon: float, sensitivity: float = 1) -> float:
    """Returns the scale Δ₁/ε of Laplace noise that makes the single release of a sum ε-DP.

    >>> laplace(0.5)
    2.0
    """
    return validate.positive("sensitivity", sensitivity) / validate.positive("epsilon", epsilon)


def exponential(epsilon: float, sensitivity: float = 1, *, monotone: bool = False) -> float:
    """Returns the factor of scores that makes a single release by the exponential mechanism, ∝ exp(factor·score), ε-DP:
    ε/(2Δ), or ε/Δ if monotone.

    Monotone: adding a record moves all scores in the same direction.

    >>> exponential(1.0)
    0.5
    """
    factor = validate.positive("epsilon", epsilon) / validate.positive("sensitivity", sensitivity)
    return factor if monotone else factor / 2
