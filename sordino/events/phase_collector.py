"""Phases: what an event amounts to under one neighbouring relation, as a list of sampled releases and their counts.

Every event adds its own phases to a `PhaseCollector` (`Event.add_phases`), and the accountants compose what was collected.

**Privacy:** a multiplier is relative to one record's contribution. Under replace-one a sum moves by two contributions,
so plain releases count with twice the sensitivity; under zero-out a record's contribution vanishes, as if removed. An
event that has no theorem under the relation is refused.
"""

from __future__ import annotations

import math

from sordino.events.relation import Relation
from sordino.privacy_loss.lattice import Sampled
from sordino.privacy_loss.pairs import GaussianPair
from sordino.privacy_loss.saddle import Phases


class Unsupported(Exception):
    """An event, or a part of one, for which an accountant has no theorem.

    Examples:
        >>> from sordino.accounting import Basic
        >>> from sordino.events import Gaussian, Mixture
        >>> try:
        ...     Basic().epsilon(Mixture((0.5, 0.5), (Gaussian(1.0), Gaussian(2.0))), delta=1e-5)
        ... except Unsupported as error:
        ...     print(type(error.event).__name__)
        Mixture

    """

    def __init__(self, event: object, why: str) -> None:
        self.event = event
        super().__init__(f"{event!r}: {why}")


class PhaseCollector:
    """Collects the phases of one event.

    Args:
        relation: which datasets are neighbours.
        delta: the δ that will be asked for; it only decides how far into its tails a pass is resolved.
        passes: how many passes may share that δ.

    """

    def __init__(self, relation: Relation, delta: float = 1e-20, passes: int = 1) -> None:
        # What is asked: the relation and the δ at which the phases will be used.
        self.relation = relation
        self.delta = delta
        self.passes = passes
        # What was collected: plain Gaussians add up in μ², everything else is counted by its pair.
        self.mu_squared = 0.0  # of all plain Gaussian releases together
        self.sampled: dict[Sampled, int] = {}

    @property
    def moves(self) -> int:
        """How many contributions of one record a plain sum moves by."""
        return 2 if self.relation is Relation.REPLACE else 1

    def add(self, sampled: Sampled, count: int) -> None:
        """Adds a release that happens `count` times."""
        self.sampled[sampled] = self.sampled.get(sampled, 0) + count

    def add_gaussian(self, mu: float, count: int) -> None:
        """Adds `count` plain Gaussian releases; all of them compose to one, with μ² = Σ μᵢ² (Dong, Roth & Su 2019)."""
        self.mu_squared += count * mu**2

    def require_relation(self, event: object, *known: Relation) -> None:
        """Raises `Unsupported` unless the relation is one that the event has a theorem for."""
        if self.relation not in known:
            raise Unsupported(event, f"has no theorem under {self.relation}")

    def empty_copy(self) -> PhaseCollector:
        """Returns a collector with the same settings in which nothing was collected yet."""
        return PhaseCollector(self.relation, self.delta, self.passes)

    def phases(self) -> Phases:
        """Returns the phases collected, with all plain Gaussian releases as one."""
        # Exact for Gaussians, and one pair instead of a composition over all of them.
        plain = ((Sampled(GaussianPair(math.sqrt(self.mu_squared))), 1),) if self.mu_squared > 0 else ()
        return plain + tuple(self.sampled.items())
