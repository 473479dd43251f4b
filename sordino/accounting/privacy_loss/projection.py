"""Clipping by estimated norms (DP-SGD-JL): a mixture over how much the estimate was too small.

Bu, Gopi, Kulkarni, Lee, Shen & Tantipongpipat 2021. With r random projections, shared by the batch and so treated as
known, the estimated norm is the true one times √(χ²_r/r): after clipping a record contributes up to ρ = √(r/χ²_r).

**Privacy:** given ρ, the release is a Gaussian of multiplier σ/ρ. ρ is rounded up to a grid; what lies beyond the grid
counts as lost. Mixtures of pairs with a public choice dominate, and are then sampled and composed like any other.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import chdtr, chdtri

from sordino import validate
from sordino.events import Gaussian, Mixture

_LEAST = 20
_GRID = 200


def projected_clipping(multiplier: float, projections: int, lost: float = 1e-14) -> Mixture:
    """The event of one release whose clipping used `projections` random projections; put it inside `Poisson`.

    Args:
        multiplier: of the noise.
        projections: r, how many random directions; 20 or more.
        lost: weight of what is left out, which is charged as lost.

    Returns:
        The event.

    Examples:
        >>> type(projected_clipping(1.1, projections=32)).__name__
        'Mixture'

    """
    multiplier = validate.positive("multiplier", multiplier)
    projections = validate.count("projections", projections)
    lost = validate.fraction("lost", lost)
    if projections < _LEAST:
        raise ValueError(f"projections={projections}: must be >= {_LEAST}; fewer leave no useful guarantee")
    # χ² quantiles; a small χ² means a large contribution
    smallest, largest = float(chdtri(projections, 1 - lost)), float(chdtri(projections, 1e-9))
    chi = np.concatenate((np.geomspace(smallest, largest, _GRID), [math.inf]))
    below = np.concatenate(([lost], chdtr(projections, chi[1:-1]), [1.0]))
    weights = np.diff(below)
    # a cell of χ² is rounded to its lower end, i.e. ρ up
    contribution = np.sqrt(projections / chi[:-1])
    return Mixture(tuple(weights), tuple(Gaussian(multiplier / rho) for rho in contribution))
