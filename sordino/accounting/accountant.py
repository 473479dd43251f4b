"""The protocol of accountants: a pure function from an event to ε at a δ. Never imports torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sordino.events import Event
from sordino.events.phase_collector import Unsupported

__all__ = ["Accountant", "Unsupported"]


class Accountant(Protocol):
    """Turns events into ε. Raises `Unsupported`, naming the subevent, rather than guess."""

    @property
    def name(self) -> str:
        """How the method is called in a claim."""
        ...

    @property
    def is_bound(self) -> bool:
        """Whether its numbers are upper bounds; a claim is never built from one that is not."""
        ...

    def epsilon(self, event: Event, delta: float) -> float:
        """Returns an upper bound on ε at this δ; infinity when there is none."""
        ...

    def delta(self, event: Event, epsilon: float) -> float:
        """Returns an upper bound on δ at this ε; one when there is none."""
        ...

    def profile(self, event: Event) -> Callable[[Any], Any]:
        """Returns δ as a function of arrays of ε."""
        ...
