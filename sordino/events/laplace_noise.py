"""The Laplace mechanism: a sum plus Lap(b) on every coordinate.

**Privacy:** (1/b)-DP (Dwork, McSherry, Nissim & Smith 2006); the worst record moves the sum by its whole L1 contribution in
one coordinate.
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino.events.base import Event, register_event, require_noise, set_field
from sordino.events.phase_collector import PhaseCollector
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.noise_ends import laplace_end
from sordino.privacy_loss.pairs import LaplacePair


@register_event
@dataclass(frozen=True)
class Laplace(Event):
    """Laplace noise of scale `scale` × (one record's L1 contribution): (1/scale)-DP.

    Args:
        scale: of the noise.

    Examples:
        >>> from sordino.accounting import PLD
        >>> round(PLD().epsilon(Laplace(2.0), delta=1e-9), 3)
        0.5

    """

    scale: float

    def __post_init__(self) -> None:
        set_field(self, "scale", require_noise("scale", self.scale))

    @property
    def noise_multiplier(self) -> float:
        """The scale b."""
        return self.scale

    def dominating_pair(self, moves: int) -> LaplacePair:
        """Returns Lap(b) moved by `moves` against itself."""
        return LaplacePair(moves / self.scale)

    def add_group_phases(self, collector: PhaseCollector, group: Event, size: int, count: int) -> None:
        """Adds a release that moves by `size` times as much."""
        collector.add(Sampled(self.dominating_pair(size * collector.moves)), count)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the bound for Laplace values, which end at 54·ln 2 of their scale."""
        return laplace_end(moves / self.scale)

    def scale_noise(self, factor: float) -> Laplace:
        """Returns the release with its scale multiplied by a factor."""
        return Laplace(self.scale * factor)
