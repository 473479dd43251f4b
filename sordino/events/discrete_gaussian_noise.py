"""The discrete Gaussian mechanism: a whole number plus discrete Gaussian noise (Canonne, Kamath & Steinke 2020)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from sordino.events.base import Event, register_event, require_noise, set_field
from sordino.events.phase_collector import PhaseCollector, Unsupported
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.pairs import (
    LARGE_SIGMA,
    LARGEST_SIGMA,
    Pair,
    discrete_gaussian_groups,
    discrete_gaussian_pair,
)
from sordino.privacy_loss.sampled_pairs import Between


@register_event
@dataclass(frozen=True)
class DiscreteGaussian(Event):
    """Discrete Gaussian noise of parameter `multiplier` on an integer to which one record contributes at most 1.

    Args:
        multiplier: σ of the discrete Gaussian.

    Examples:
        >>> DiscreteGaussian(10.0)
        DiscreteGaussian(multiplier=10.0)

    """

    multiplier: float

    def __post_init__(self) -> None:
        set_field(self, "multiplier", require_noise("multiplier", self.multiplier))

    @property
    def noise_multiplier(self) -> float:
        """σ."""
        return self.multiplier

    def dominating_pair(self, moves: int) -> Pair:
        """Returns the dominating pair of discrete Gaussian noise: the noise moved by `moves` against itself; of large
        σ, pairs that it lies between.
        """
        sigma = self.multiplier
        if sigma > LARGEST_SIGMA:
            raise Unsupported(self, f"a discrete Gaussian is summed up to a multiplier of {LARGEST_SIGMA:g}")
        return Between(*discrete_gaussian_groups(sigma, moves)) if sigma > LARGE_SIGMA else _exact_pair(sigma, moves)

    def add_group_phases(self, collector: PhaseCollector, group: Event, size: int, count: int) -> None:
        """Adds a release that moves by `size` times as much."""
        collector.add(Sampled(self.dominating_pair(size * collector.moves)), count)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns 0, because this library does not draw such noise; who draws it has to bound its end."""
        return 0.0

    def scale_noise(self, factor: float) -> DiscreteGaussian:
        """Returns the release with σ multiplied by a factor."""
        return DiscreteGaussian(self.multiplier * factor)


@lru_cache(maxsize=64)
def _exact_pair(sigma: float, moves: int) -> Pair:
    """Returns the pair, always the same object: pairs of arrays are equal only if they are."""
    return discrete_gaussian_pair(sigma, moves)
