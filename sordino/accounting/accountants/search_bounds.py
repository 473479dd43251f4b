"""Searches in the privacy-loss accountant: the best of a random number of runs, alone or beside other releases.

Of one search the smaller of two bounds counts, by its profile (`privacy_loss.selection`) and by Rényi divergences
(`privacy_loss.stopping`). Beside other releases it is composed by Rényi divergences, or by adding: (ε₁ + ε₂, δ₁ + δ₂) with
δ cut in several ways.

**Privacy:** upper bounds, held against what one run costs. If all scores are equal, the winner is the first run, so a
search reveals at least what a run reveals with the probability that there is a run: δ_search(ε) ≥ P[K ≥ 1]·δ_run(ε).
That is its lower bound, and a search that is priced below it is not returned.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from contextlib import suppress
from functools import lru_cache
from typing import Protocol

from sordino.accounting.accountant import Unsupported
from sordino.accounting.accountants.rdp import RDP
from sordino.events import Event, Relation, Repeat, Together, canonical, compose
from sordino.events.search_of_runs import RunSearch
from sordino.privacy_loss.selection import Profile, Winner
from sordino.privacy_loss.soundness import require_at_most

_SHARES = (0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99)
"""Of δ, tried for what is released beside the searches."""
_BELOW = 1e-4
"""The profile is sampled to where δ is this share of what a run may have."""


_LEAST_COMPARED = 1e-280
"""A δ below it is not compared: floats end."""
_USUAL = 1e-8
"""One table serves all δ down to this; below, one for each decade."""


class RunAccountant(Hashable, Protocol):
    """An accountant of one run."""

    def epsilon(self, event: Event, delta: float, *, relation: Relation | None = None) -> float:
        """Returns an upper bound on ε."""
        ...

    def delta(self, event: Event, epsilon: float, *, relation: Relation | None = None) -> float:
        """Returns an upper bound on δ."""
        ...

    def bounds(self, event: Event, delta: float, *, relation: Relation | None = None) -> tuple[float, float]:
        """Returns lower and upper bounds on ε."""
        ...

    def delta_bounds(self, event: Event, epsilon: float, *, relation: Relation | None = None) -> tuple[float, float]:
        """Returns lower and upper bounds on δ."""
        ...


def has_search(event: Event) -> bool:
    """Returns whether the best of many runs is anywhere in an event."""
    return any(isinstance(inner, RunSearch) for inner in event.walk())


def bound_search_epsilon(event: Event, delta: float, accountant: RunAccountant, relation: Relation | None) -> float:
    """Returns an accountant's upper bound on ε of an event with hyper-parameter searches in it."""
    event = canonical(event)
    best = math.inf
    with suppress(Unsupported):
        best = RDP(relation=relation).epsilon(event, delta)
    # One search alone: the smaller of the Rényi bound and the bound from the profile of a run.
    if isinstance(event, RunSearch):
        largest_epsilon = event.epsilon_limit_factor() * _run_epsilon(event, accountant, relation, delta) + 1.0
        best = min(best, _bound_winner(event, accountant, relation, delta).epsilon(delta, largest_epsilon))
        lowest = lower_search_epsilon(event, delta, accountant, relation)
        require_at_most(lowest, best, "one run of a search, and the whole search")
        return best
    # Searches beside other releases: add ε and δ up, with δ cut in several ways.
    searches, rest = _separate_searches(event)
    shares = _SHARES if rest != Together() else (0.0,)
    for share in shares:
        each = (1 - share) * delta / sum(count for _, count in searches)
        total = accountant.epsilon(rest, share * delta, relation=relation) if share else 0.0
        total += math.fsum(
            count * bound_search_epsilon(search, each, accountant, relation) for search, count in searches
        )
        best = min(best, total)
    return best


def bound_search_delta(event: Event, epsilon: float, accountant: RunAccountant, relation: Relation | None) -> float:
    """Returns an accountant's upper bound on δ of an event with searches in it; of a search beside other releases, by
    Rényi divergences alone.
    """
    event = canonical(event)
    # Rényi divergences bound every search; where an event has none, δ = 1 is all that is known so far.
    best = 1.0
    with suppress(Unsupported):
        best = RDP(relation=relation).delta(event, epsilon)
    # A search alone has a second bound, from the privacy profile of one run. Both are valid, so the smaller one is.
    if isinstance(event, RunSearch):
        best = min(best, _bound_winner(event, accountant, relation, max(best * _BELOW, 1e-30)).delta(epsilon))
        # With the chance P[K ≥ 1] there is a run at all, and then the search costs at least as much as one run.
        lowest = lower_search_delta(event, epsilon, accountant, relation)
        if lowest > _LEAST_COMPARED:
            # compared as logarithms, so that a δ of 1e-12 above one of 1e-15 is noticed
            require_at_most(
                math.log(lowest), math.log(max(best, _LEAST_COMPARED)), "one run of a search, and the whole search"
            )
    return best


def lower_search_epsilon(event: Event, delta: float, accountant: RunAccountant, relation: Relation | None) -> float:
    """Returns a lower bound on ε of an event with searches in it: what one run of the costliest search costs alone.

    Scores that are all equal make the winner the first run, so δ_search ≥ P[K ≥ 1]·δ_run at every ε.
    """
    event = canonical(event)
    if isinstance(event, RunSearch):
        share = delta / event.probability_of_a_run()
        if has_search(event.event) or share >= 1:
            return 0.0
        return _lower_run_epsilon(accountant, event.event, share, relation)
    searches, rest = _separate_searches(event)
    best = max(lower_search_epsilon(search, delta, accountant, relation) for search, _ in searches)
    return max(best, _lower_run_epsilon(accountant, rest, delta, relation)) if rest != Together() else best


@lru_cache(maxsize=256)
def _lower_run_epsilon(accountant: RunAccountant, event: Event, delta: float, relation: Relation | None) -> float:
    """Returns the certified lower bound on ε of one run; kept, because it is asked for at the same δ again."""
    return accountant.bounds(event, delta, relation=relation)[0]


def lower_search_delta(event: Event, epsilon: float, accountant: RunAccountant, relation: Relation | None) -> float:
    """Returns a lower bound on δ of an event with searches in it, P[K ≥ 1]·δ_run(ε); zero where searches are composed
    with other releases.
    """
    event = canonical(event)
    if not isinstance(event, RunSearch) or has_search(event.event):
        return 0.0
    return event.probability_of_a_run() * accountant.delta_bounds(event.event, epsilon, relation=relation)[0]


def _separate_searches(event: Event) -> tuple[list[tuple[RunSearch, int]], Event]:
    """Returns the searches in an event with their counts, and the rest as one event, so that each can be bounded."""
    searches: list[tuple[RunSearch, int]] = []
    rest: list[Event] = []
    # A search is a part of its own only at the top of a composition, where basic composition applies to it.
    for inner in event.events if isinstance(event, Together) else (event,):
        once, count = (inner.event, inner.count) if isinstance(inner, Repeat) else (inner, 1)
        if isinstance(once, RunSearch):
            searches.append((once, count))
        elif has_search(inner):
            raise Unsupported(inner, "a search inside a sampled draw, a group or a repeated whole has no theorem")
        else:
            rest.append(inner)
    return searches, canonical(compose(rest))


def _run_epsilon(search: RunSearch, accountant: RunAccountant, relation: Relation | None, delta: float) -> float:
    """Returns ε of one run at a δ that is a small part of what it may have."""
    run_delta = min(0.5, _BELOW * delta / max(1.0, search.expected_runs()))
    return accountant.epsilon(search.event, run_delta, relation=relation)


def _bound_winner(event: RunSearch, accountant: RunAccountant, relation: Relation | None, delta: float) -> Winner:
    """Returns the bound on the best of K runs, from a table that serves all δ of one decade."""
    return _prepare_winner(event, accountant, relation, min(_USUAL, 10.0 ** math.floor(math.log10(delta))))


@lru_cache(maxsize=64)
def _prepare_winner(event: RunSearch, accountant: RunAccountant, relation: Relation | None, delta: float) -> Winner:
    """Returns the accountant's bound on the winner of a search, prepared for all δ of one decade, because making its
    table takes a while.
    """
    largest_epsilon = _run_epsilon(event, accountant, relation, delta)

    def delta_of_run(epsilon: float) -> float:
        return accountant.delta(event.event, epsilon, relation=relation)

    return Winner.from_profile(Profile.from_function(delta_of_run, largest_epsilon), event.runs())
