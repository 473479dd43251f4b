"""Shuffling: one pass over the data in random disjoint batches.

**Privacy:** a record is in one batch of a pass, so the worst single release per pass is a valid bound, without
amplification by shuffling. A lower bound is what the best known attack on Gaussian passes proves (Chua et al. 2024).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import ClassVar

from sordino.events.algebra import compose
from sordino.events.base import Event, register_event, require_event, set_field
from sordino.events.gaussian_noise import Gaussian
from sordino.events.phase_collector import PhaseCollector
from sordino.events.relation import Relation
from sordino.events.sequential_composition import Repeat, Together, different_releases
from sordino.privacy_loss.shuffling import shuffle_lower_bound, shuffle_lower_delta


@register_event
@dataclass(frozen=True)
class Batch(Event):
    """All that was released on one batch of a `Shuffle`d pass, kept together: `Shuffle(Repeat(Batch(e), n))`.

    Without it, each release inside `Shuffle` stands for another batch, and a record meets only one of them.

    Args:
        event: all of one batch.

    Examples:
        >>> from sordino.events import Gaussian, Together
        >>> Batch(Together(Gaussian(1.1), Gaussian(20.0)))
        Batch(event=Together(events=(Gaussian(multiplier=1.1), Gaussian(multiplier=20.0))))

    """

    event: Event

    def __post_init__(self) -> None:
        set_field(self, "event", require_event(self.event))

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds all that was released on the batch."""
        self.event.add_phases(collector, count)


@register_event
@dataclass(frozen=True)
class Shuffle(Event):
    """One pass over the data in random disjoint batches; `event` composes what was released on each (zero-out).

    A record is in at most one batch of the pass, so it meets at most one of the releases.

    Args:
        event: the composition of what was released on the batches.

    Examples:
        >>> from sordino.events import Gaussian, Repeat
        >>> Shuffle(Repeat(Gaussian(1.1), 10))
        Shuffle(event=Repeat(event=Gaussian(multiplier=1.1), count=10))

    """

    event: Event
    assumes: ClassVar[str] = "each record is in one lot per epoch; no amplification by shuffling is assumed"
    relation: ClassVar[Relation] = Relation.ZERO_OUT
    is_tight: ClassVar[bool] = False
    is_counted_one_by_one: ClassVar[bool] = True

    def __post_init__(self) -> None:
        set_field(self, "event", require_event(self.event))

    @staticmethod
    def of_lots(lots: Iterable[tuple[Event, int]]) -> Shuffle:
        """Returns a shuffled pass from what was released on its lots, each with how many lots in a row it was released
        on.

        Several releases on one lot are kept together, because a record that meets one of them meets all.
        """
        # Several releases on one batch stay together: taken apart, a record would seem to meet one of them only.
        batches = ((Batch(event) if isinstance(event, Together | Repeat) else event, count) for event, count in lots)
        return Shuffle(compose(Repeat(event, count) for event, count in batches))

    def add_phases(self, collector: PhaseCollector, count: int) -> None:
        """Adds to the phases the worst single release of a shuffled pass; of releases that cannot be ranked, one of
        each kind.
        """
        # The position of a record in the pass is secret, but no amplification is claimed for it here. A record is in
        # one batch, so the worst single release bounds what it is exposed to.
        collector.require_relation(self, Relation.ZERO_OUT, Relation.REPLACE)
        largest, others = 0.0, set()
        for release in different_releases(self.event):
            # Account each release by itself, to see whether it is a plain Gaussian.
            alone = collector.empty_copy()
            release.add_phases(alone, 1)
            if alone.sampled:
                others.add(release)
            else:
                largest = max(largest, alone.mu_squared)
        # Gaussians can be ranked by μ; of the others each kind is counted, which is more than one record meets.
        collector.mu_squared += count * largest
        for release in others:
            release.add_phases(collector, count)

    def lower_epsilon(self, count: int, delta: float) -> float:
        """Returns what the best known attack on `count` Gaussian passes proves; nothing is known for other passes."""
        release, batches = self._repeated_release()
        return shuffle_lower_bound(release.multiplier, batches, count, delta) if isinstance(release, Gaussian) else 0.0

    def lower_delta(self, count: int, epsilon: float) -> float:
        """Returns the lower bound on δ that the best known attack on `count` shuffled Gaussian passes proves; nothing
        is known for other passes.
        """
        release, batches = self._repeated_release()
        return (
            shuffle_lower_delta(release.multiplier, batches, count, epsilon) if isinstance(release, Gaussian) else 0.0
        )

    def _repeated_release(self) -> tuple[Event, int]:
        """Returns the release on every batch, and the number of batches; for different releases, their composition."""
        return (self.event.event, self.event.count) if isinstance(self.event, Repeat) else (self.event, 1)

    def noise_end(self, moves: int, delta: float, coordinates: int) -> float:
        """Returns the bound for one release of each kind, because a record meets one release of a pass."""
        kinds = different_releases(self.event)
        return math.fsum(kind.noise_end(moves, delta, coordinates) for kind in kinds)
