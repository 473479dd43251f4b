"""The Gaussian mechanism: a sum plus N(0, σ²) on every coordinate.

**Privacy:** for a sum with Gaussian noise the hockey-stick divergence is largest when the record contributes its whole
sensitivity in one direction: N(μ, 1) against N(0, 1) with μ = 1/σ. k releases compose to one with μ² = Σ μᵢ² (Dong, Roth &
Su 2019), and a group of k records moves the sum by k contributions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino.events.base import Event, register_event, require_noise, set_field
from sordino.events.phase_collector import PhaseCollector
from sordino.privacy_loss.noise_ends import gaussian_end
from sordino.privacy_loss.pairs import GaussianPair


@register_event
@dataclass(frozen=True)
class Gaussian(Event):
    """Gaussian noise of standard deviation multiplier × (one record's L2 contribution).

    Args:
        multiplier: σ.

    Examples:
        >>> from sordino.accounting import PLD
        >>> round(PLD().epsilon(Gaussian(5.0), delta=1e-5), 3)
        0.726

    """

    multiplier: float
    is_counted_one_by_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_field(self, "multiplier", require_noise("multiplier", self.multiplier))

    @property
    def noise_multiplier(self) -> float:
        """σ."""
        return self.multiplier

    def dominating_pair(self, moves: int) -> GaussianPair:
        """Returns N(μ, 1) against N(0, 1), μ = moves/σ."""
        return GaussianPair(moves / self.multiplier)

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds to the one Gaussian that all plain Gaussian releases compose to."""
        collector.add_gaussian(collector.moves / self.multiplier, count)

    def add_group_phases(self, collector: PhaseCollector, group: Event, size: int, count: int) -> None:
        """Adds a release that moves by `size` times as much."""
        collector.add_gaussian(size * collector.moves / self.multiplier, count)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the bound for Gaussian values, which end at 9.42 σ."""
        return gaussian_end(moves / self.multiplier, delta, coordinates)

    def scale_noise(self, factor: float) -> Gaussian:
        """Returns the release with σ multiplied by a factor."""
        return Gaussian(self.multiplier * factor)
