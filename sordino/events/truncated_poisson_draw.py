"""Truncated Poisson sampling: a Poisson draw that is cut at random to a largest size.

**Privacy:** (Ganesh et al. 2025, arXiv:2508.15089) Two cases are mixed, with the probability that the other records alone
fill the draw. If they do not, the draw is a Poisson draw. If they do, a record that is drawn and kept replaces another one,
which moves the sum by up to two contributions, and is kept with probability `kept`: Poisson(kept) at 2μ. Each direction,
removing and adding, is bounded by its own pair, N(0) against the mixture; both at once, as one symmetric pair, would be
dearer. Tests compare it with enumerations of small datasets.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from scipy.special import bdtrc

from sordino import validate
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.events.phase_collector import PhaseCollector, Unsupported
from sordino.events.relation import Relation
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.pairs import GaussianPair, MixturePair, Pair
from sordino.privacy_loss.sampled_pairs import SampledPair


@register_event
@dataclass(frozen=True)
class TruncatedPoisson(Event):
    """`event` on a Poisson draw at `rate` from `dataset_size` records, cut at random to at most `max_batch`.

    Args:
        rate: the probability of taking part.
        dataset_size: records in all.
        max_batch: no draw is larger.
        event: released on the draw.

    Examples:
        >>> from sordino.events import Gaussian
        >>> TruncatedPoisson(0.01, dataset_size=1000, max_batch=30, event=Gaussian(1.1)).max_batch
        30

    """

    rate: float
    dataset_size: int
    max_batch: int
    event: Event
    assumes: ClassVar[str] = "lots by secret coins, cut at random to a largest size: the lots of this run were drawn so"
    relation: ClassVar[Relation] = Relation.ADD_OR_REMOVE

    def __post_init__(self) -> None:
        set_field(self, "rate", validate.rate("rate", self.rate))
        set_field(self, "dataset_size", validate.count("dataset_size", self.dataset_size))
        set_field(self, "max_batch", validate.count("max_batch", self.max_batch))
        set_field(self, "event", require_event(self.event))

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds the mixture of a Poisson draw and a replaced record."""
        collector.require_relation(self, Relation.ADD_OR_REMOVE)
        collector.add(Sampled(self._mixed_pair()), count)

    def _mixed_pair(self) -> Pair:
        """Returns the pair of one truncated Poisson draw, which contains the sampling."""
        # Where cutting is impossible, this is plain Poisson sampling.
        pair = self.event.dominating_pair(1)
        if not isinstance(pair, GaussianPair):
            raise Unsupported(self, "truncated Poisson sampling is known for Gaussian releases only")
        size, rate, largest = self.dataset_size, self.rate, self.max_batch
        poisson = SampledPair(pair, rate)
        if largest >= size:
            return poisson
        # Otherwise two cases are mixed: the other n − 1 records alone fill the draw, or they do not.
        probability_cut = float(bdtrc(largest - 1, size - 1, rate))  # P[Binomial(n−1, q) ≥ B]
        if probability_cut == 0.0:
            return poisson
        # The chance that a record which was drawn is kept, given that the draw was cut.
        kept = min(1.0 - 1e-12, float(bdtrc(largest, size, rate)) * largest / (probability_cut * size))
        return MixturePair(
            (1 - probability_cut, probability_cut), (poisson, SampledPair(GaussianPair(2 * pair.mu), kept))
        )

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the inner event's bound for twice the move, because a record that comes in may push another out."""
        return self.event.noise_end(2 * moves, delta, coordinates)
