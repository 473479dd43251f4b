"""PLD for a training loop that asks after every step: the same bound, remembered from one question to the next.

A run that repeats one event is answered by a `Meter`, in well under a millisecond; anything else by `PLD` itself.

**Privacy:** every answer is an upper bound of the same kind as PLD's, at most one lattice point above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from sordino import validate
from sordino.accounting.accountants.meter import Meter
from sordino.accounting.accountants.pld import PLD
from sordino.events import Event, Relation, Repeat, canonical


@dataclass(frozen=True)
class Live:
    """An accountant for live progress.

    >>> from sordino.events import Gaussian, Poisson
    >>> live = Live()
    >>> [round(live.epsilon(Repeat(Poisson(0.01, Gaussian(4.0)), k), 1e-5), 2) for k in (1000, 10_000)]
    [0.27, 0.95]
    """

    _meters: dict[tuple[Event, float], Meter] = field(default_factory=dict, repr=False, compare=False)

    @property
    def name(self) -> str:
        """The name of the bound, which is PLD's."""
        return "PLD"

    @property
    def is_bound(self) -> bool:
        """True, because every answer is an upper bound."""
        return True

    def epsilon(self, event: Event, delta: float, *, relation: Relation | None = None) -> float:
        """Returns the live accountant's upper bound on ε at a δ, for a loop that asks after every step; it remembers
        its answers from one step to the next.
        """
        event, delta = canonical(event), validate.number("delta", delta)
        if not isinstance(event, Repeat) or not delta or relation is not None:
            return PLD().epsilon(event, delta, relation=relation)
        key = (event.event, delta)
        if key not in self._meters:
            self._meters[key] = Meter(event.event, delta)
        return self._meters[key].epsilon(event.count)

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns PLD's upper bound on δ."""
        return PLD().delta(event, epsilon)

    def profile(self, event: Event) -> Callable[[Any], Any]:
        """Returns PLD's δ(ε) as a function of arrays."""
        return PLD().profile(event)
