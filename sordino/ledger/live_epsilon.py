"""Live ε: what has been spent so far, for a progress line or a log in the middle of a run.

It is read off the ledger. A claim is made at the end, with a test of the user's code before it, and asking for one at
every log would cost passes over the data. `Private.spent_epsilon` looks at the parameters and, now and then, tests a lot
before it asks for this ε. What has voided the run until now leaves no ε to show.

**Privacy:** a function of events that were charged. It says what was spent, not that the end will bear a claim.
"""

from __future__ import annotations

from sordino.accounting.accountants.live import Live
from sordino.events import Event
from sordino.ledger import claims
from sordino.ledger.claims import Guarantee
from sordino.release.noise_tail import MOST_COORDINATES


class LiveEpsilon:
    """ε at one δ, asked again and again.

    >>> from sordino.events import Gaussian, NonPrivate, Poisson, Repeat
    >>> live = LiveEpsilon(1e-5)
    >>> round(live(Repeat(Poisson(0.01, Gaussian(4.0)), 1000)), 2)
    0.27
    >>> live(NonPrivate("a gradient without noise")) is None
    True
    """

    def __init__(self, delta: float) -> None:
        self.delta, self._live = delta, Live()

    def __call__(self, event: Event, coordinates: int = MOST_COORDINATES) -> float | None:
        """Returns ε of this event, or None if it has none."""
        said = claims.make_claim(event, self.delta, self._live, coordinates=coordinates)
        return said.epsilon if isinstance(said, Guarantee) else None
