"""Poisson sampling: a draw in which each record takes part by its own secret coin.

**Privacy:** sampling turns the pair (P, Q) of the release into ((1−q)Q + qP, Q) when a record is removed and the other
way round when it is added (Zhu, Dong & Wang 2022, theorem 11); zeroing a record out is like removing it. For Gaussian
releases there are two more theorems. Replacing a record: (1−q)N(0)+qN(1) against (1−q)N(0)+qN(−1) (Lebeda et al. 2024).
A group of records: Σ Binomial(k, q)(i)·N(i) against N(0) (Ganesh 2024).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sordino import validate
from sordino.events.algebra import canonical
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.events.non_private import NonPrivate
from sordino.events.phase_collector import PhaseCollector, Unsupported
from sordino.events.relation import Relation
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.pairs import GaussianPair
from sordino.privacy_loss.sampled_pairs import GroupPair, PoissonReplacePair


@register_event
@dataclass(frozen=True)
class Poisson(Event):
    """`event` on a draw in which each record takes part independently with probability `rate`.

    Args:
        rate: the probability of taking part.
        event: released on the draw.

    Examples:
        >>> from sordino.accounting import PLD
        >>> from sordino.events import Gaussian, Repeat
        >>> round(PLD().epsilon(Repeat(Poisson(0.01, Gaussian(1.1)), 500), delta=1e-5), 3)
        1.083

    """

    rate: float
    event: Event
    assumes: ClassVar[str] = (
        "each record is in a lot by its own secret coin (Poisson sampling): the lots of this run were drawn so"
    )
    relation: ClassVar[Relation] = Relation.ADD_OR_REMOVE
    is_one_draw: ClassVar[bool] = True
    is_counted_one_by_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_field(self, "rate", validate.rate("rate", self.rate))
        set_field(self, "event", require_event(self.event))

    def is_shortest(self) -> bool:
        """Returns whether this is a mechanism on a draw, as nearly every step of a training run is."""
        return self.rate != 1.0 and not isinstance(self.event, NonPrivate) and not self.event.inner_events()

    def shorten(self) -> Event:
        """Returns the inner event alone if every record takes part."""
        return self.event.shorten() if self.rate == 1.0 else super().shorten()

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds to the phases the inner event's pair on a Poisson draw; a draw from a draw is one draw whose rate is the
        product.
        """
        # A record is in a draw from a draw with probability q₁q₂ and independently of the others: Poisson sampling at
        # the product.
        rate, inner = self.rate, canonical(self.event)
        while isinstance(inner, Poisson):
            rate, inner = rate * inner.rate, canonical(inner.event)
        # At rate 1 everybody is in, and nothing is amplified.
        if rate == 1.0:
            inner.add_phases(collector, count)
        # Replacing one record moves two coins, for which a dominating pair is known for Gaussians.
        elif collector.relation is Relation.REPLACE:
            pair = inner.dominating_pair(1)
            if not isinstance(pair, GaussianPair):
                raise Unsupported(self, "Poisson sampling under replace-one is known for Gaussian releases only")
            collector.add(Sampled(PoissonReplacePair(rate, pair.mu)), count)
        else:
            collector.add(Sampled(inner.dominating_pair(1), rate), count)

    def add_group_phases(self, collector: PhaseCollector, group: Event, size: int, count: int) -> None:
        """Adds to the phases the pair of a group of records on a Poisson draw: each record of the group has a coin of
        its own.
        """
        # Each record of the group has its own coin, so the number of members that are drawn is binomial.
        collector.require_relation(group, Relation.ADD_OR_REMOVE, Relation.ZERO_OUT)
        pair = self.event.dominating_pair(1)
        if not isinstance(pair, GaussianPair):
            raise Unsupported(group, "group privacy under sampling is known for Gaussian releases only")
        collector.add(Sampled(GroupPair(self.rate, pair.mu, size)), count)
