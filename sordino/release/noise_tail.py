"""The δ that finite noise can support: generated noise ends, which costs a little δ.

Each event knows what the end of its noise costs (`Event.noise_end`), by the bounds of `privacy_loss/noise_ends.py`, which
has the proof. Composition adds them up.
"""

from __future__ import annotations

from typing import Final

from sordino.events import Event, Relation

MOST_COORDINATES: Final = 1 << 34
"""The most coordinates of one release: the random streams give no more at once."""


def delta_of_noise_end(event: Event, delta: float, relation: Relation, coordinates: int = MOST_COORDINATES) -> float:
    """Returns what the finite tail of our noise adds to δ over an event whose releases have at most so many
    coordinates.

    >>> from sordino.events import Gaussian, Poisson, Repeat
    >>> run = Repeat(Poisson(0.01, Gaussian(1.0)), 10_000)
    >>> f"{delta_of_noise_end(run, 1e-5, Relation.ADD_OR_REMOVE, 10**7):.1e}"
    '1.6e-11'
    """
    moves = 2 if relation is Relation.REPLACE else 1
    return min(1.0, event.noise_end(moves, delta, max(2, coordinates)))
