"""What an accountant is: a pure function from an event to ε at a δ. Imports events, nothing else, and never torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from sordino.events import Event


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

    def __init__(self, event: Event, why: str) -> None:
        self.event = event
        super().__init__(f"{event!r}: {why}")


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
        """An upper bound on ε at this δ; infinity when there is none."""
        ...

    def delta(self, event: Event, epsilon: float) -> float:
        """An upper bound on δ at this ε; one when there is none."""
        ...

    def profile(self, event: Event) -> Callable[[Any], Any]:
        """δ as a function of arrays of ε."""
        ...
