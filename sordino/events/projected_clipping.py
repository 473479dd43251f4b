"""Clipping by estimated norms (DP-SGD-JL): a mixture over how much the estimate was too small.

Bu, Gopi, Kulkarni, Lee, Shen & Tantipongpipat 2021. With r random projections, shared by the batch and so treated as
known, the estimated norm is the true one times √(χ²_r/r): after clipping a record contributes up to ρ = √(r/χ²_r).

**Privacy:** given ρ, the release is a Gaussian of multiplier σ/ρ. ρ is rounded up to a grid; what lies beyond the grid
counts as lost. Mixtures of pairs with a public choice dominate, and are then sampled and composed like any other.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import chdtr, chdtri, gammainc

from sordino import validate
from sordino.events.base import Event, register_event, require_noise, set_field
from sordino.events.gaussian_noise import Gaussian
from sordino.events.mixture import Mixture
from sordino.events.phase_collector import Unsupported
from sordino.privacy_loss.noise_ends import gaussian_end
from sordino.privacy_loss.pairs import Pair

_FEWEST_PROJECTIONS = 20
_GRID = 200
_NEXT_FACTOR = 1.125  # from one ρ at which the end of the noise is computed to the next


@register_event
@dataclass(frozen=True)
class ProjectedClip(Event):
    """A Gaussian release at `multiplier` whose records were clipped by norms estimated from random directions.

    One record contributes up to ρ = √(r/χ²_r) times its share, r = `projections`, and the directions are known to all.

    Args:
        multiplier: σ.
        projections: r.

    Examples:
        >>> ProjectedClip(1.1, projections=8)
        ProjectedClip(multiplier=1.1, projections=8)

    """

    multiplier: float
    projections: int
    no_renyi_divergence: ClassVar[str] = "clipping by estimated norms has no finite Rényi divergence; use PLD"
    """A contribution without a bound has none."""

    def __post_init__(self) -> None:
        set_field(self, "multiplier", require_noise("multiplier", self.multiplier))
        set_field(self, "projections", validate.count("projections", self.projections))

    @property
    def noise_multiplier(self) -> float:
        """σ."""
        return self.multiplier

    def dominating_pair(self, moves: int) -> Pair:
        """Returns the dominating pair of clipping by projected norms, the mixture over ρ; only for one record there or
        not, for two records are read short differently.
        """
        if moves != 1:
            raise Unsupported(self, "clipping by estimated norms has a theorem for one record there or not only")
        return projected_clipping(self.multiplier, self.projections).dominating_pair(1)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns what the end of the noise costs after clipping by projected norms: the mean of the Gaussian's bound
        over the record's ρ, rounded up to a few values.
        """
        # ρ is by how much the estimated norm was too small. Its law is known: r/ρ² has a χ² distribution with r
        # degrees.
        shift, r = moves / self.multiplier, self.projections
        total, beyond, factor = 0.0, 1.0, 1.0
        while beyond > 0:
            # Within each stretch of ρ the larger end counts, so the sum is an upper bound.
            probability_beyond = float(gammainc(r / 2, r / (2 * factor**2)))  # P(ρ > factor)
            delta_at_factor = gaussian_end(shift * factor, delta, coordinates)
            total += (beyond - probability_beyond) * delta_at_factor
            # δ is never above 1: whatever probability is left counts in full, and the sum is complete.
            if delta_at_factor == 1.0:
                return total + probability_beyond
            beyond, factor = probability_beyond, factor * _NEXT_FACTOR
        return total

    def scale_noise(self, factor: float) -> ProjectedClip:
        """Returns the release with σ multiplied by a factor."""
        return ProjectedClip(self.multiplier * factor, self.projections)


def projected_clipping(multiplier: float, projections: int, lost: float = 1e-14) -> Mixture:
    """Returns the event of one release whose clipping used `projections` random projections; put it inside `Poisson`.

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
    if projections < _FEWEST_PROJECTIONS:
        raise ValueError(
            f"projections={projections}: must be >= {_FEWEST_PROJECTIONS}; fewer leave no useful guarantee"
        )
    # χ² quantiles; a small χ² means a large contribution
    smallest, largest = float(chdtri(projections, 1 - lost)), float(chdtri(projections, 1e-9))
    chi = np.concatenate((np.geomspace(smallest, largest, _GRID), [math.inf]))
    # Below the smallest χ² no number bounds ρ: its probability `lost` is missing from the weights, a total loss.
    below = np.concatenate(([lost], chdtr(projections, chi[1:-1]), [1.0]))
    weights = np.diff(below)
    # a cell of χ² is rounded to its lower end, i.e. ρ up
    contribution = np.sqrt(projections / chi[:-1])
    return Mixture(tuple(weights), tuple(Gaussian(multiplier / rho) for rho in contribution))
