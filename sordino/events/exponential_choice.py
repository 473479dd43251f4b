"""The exponential mechanism: one choice among candidates, better ones being more likely.

**Privacy:** ε-DP (McSherry & Talwar 2007) and ε-bounded-range (Durfee & Rogers 2019), which composes better than ε-DP
alone: the dominating pair is the worst of all ε-bounded-range pairs (Dong, Durfee & Rogers 2020).
"""

from __future__ import annotations

from dataclasses import dataclass

from sordino import validate
from sordino.events.base import Event, register_event, set_field
from sordino.events.phase_collector import PhaseCollector
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.noise_ends import choice_end
from sordino.privacy_loss.pairs import BoundedRangePair


@register_event
@dataclass(frozen=True)
class Exponential(Event):
    """One choice by the exponential mechanism: epsilon-DP.

    Args:
        epsilon: of the choice.

    Examples:
        >>> Exponential(0.1)
        Exponential(epsilon=0.1)

    """

    epsilon: float

    def __post_init__(self) -> None:
        set_field(self, "epsilon", validate.positive("epsilon", self.epsilon))

    def dominating_pair(self, moves: int) -> BoundedRangePair:
        """Returns the worst pair of bounded range; scores that move by more have a larger range."""
        return BoundedRangePair(moves * self.epsilon)

    def add_group_phases(self, collector: PhaseCollector, group: Event, size: int, count: int) -> None:
        """Adds a choice whose scores move by `size` times as much."""
        collector.add(Sampled(self.dominating_pair(size * collector.moves)), count)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the bound for a choice by Gumbel values, which end."""
        return choice_end(moves * self.epsilon)

    def scale_noise(self, factor: float) -> Exponential:
        """Returns a choice that costs ε divided by a factor."""
        return Exponential(self.epsilon / factor)
