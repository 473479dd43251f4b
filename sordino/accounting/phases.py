"""The phases of an event: the sampled releases that compose it, under one neighbouring relation.

Each event adds its own phases (`Event.add_phases`); what a relation does not cover is refused there. This module decides
which relation an event is accounted under.
"""

from __future__ import annotations

from sordino.events import Event, Relation, Repeat, canonical, relations
from sordino.events.base import require_event
from sordino.events.phase_collector import PhaseCollector, Unsupported
from sordino.privacy_loss.saddle import Phases


def relation_of(event: Event, asked: Relation | None = None) -> Relation:
    """Returns the one neighbouring relation under which the phases of an event can be accounted; refuses samplers that
    speak about different ones.

    Args:
        event: anything that was done to the data.
        asked: the relation that is wanted; refused where the event speaks about another.

    Returns:
        The relation.

    Examples:
        >>> from sordino.events import Gaussian, Poisson
        >>> str(relation_of(Poisson(0.1, Gaussian(1.0))))
        'add-or-remove-one'

    """
    event = require_event(event)
    if asked is not None:
        return Relation(asked)
    # An event without sampling can be accounted about any neighbours; adding or removing one is the usual reading.
    found = relations(event)
    if not found:
        return Relation.ADD_OR_REMOVE
    # Parts about adding or removing a record compose with parts about zeroing one out, and the claim is about the latter.
    if found <= {Relation.ADD_OR_REMOVE, Relation.ZERO_OUT}:
        return Relation.ZERO_OUT if Relation.ZERO_OUT in found else Relation.ADD_OR_REMOVE
    if found == {Relation.REPLACE}:
        return Relation.REPLACE
    names = ", ".join(sorted(found))
    raise Unsupported(event, f"its ways of sampling speak about different neighbours ({names}); account them apart")


def collect_phases(event: Event, relation: Relation, delta: float) -> Phases:
    """Returns the phases of an event under a relation, which accountants compose. δ only decides how far out in its
    tails a pass is resolved.
    """
    event = canonical(event)
    parts = list(event.walk())
    passes = max([len(parts), *(part.count for part in parts if isinstance(part, Repeat))])
    collector = PhaseCollector(relation, delta, passes)
    event.add_phases(collector, 1)
    return collector.phases()


def collect_phases_without_delta(event: Event, relation: Relation) -> Phases:
    """Returns the phases of an event for an accountant that needs no δ; `event` is taken as it is."""
    collector = PhaseCollector(relation)
    event.add_phases(collector, 1)
    return collector.phases()
