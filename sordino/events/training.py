"""A training run as an event, from the numbers it is known by: rate, noise, steps, and how its lots are drawn.

    training_event(0.01, Gaussian(1.1), 2000)   =   Repeat(Poisson(0.01, Gaussian(1.1)), 2000)

**Privacy:** lots in passes are counted in whole passes: a pass that was cut short costs what a whole one does.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

from sordino import validate
from sordino.events.balls_in_bins_pass import BallsInBins
from sordino.events.base import Event
from sordino.events.fixed_size_draw import FixedSize
from sordino.events.poisson_draw import Poisson
from sordino.events.sequential_composition import Repeat
from sordino.events.shuffled_pass import Shuffle

POISSON, FIXED_SIZE = "poisson", "fixed-size"

PASSES: Mapping[str, Callable[[int, Event], Event]] = {
    "shuffle": lambda lots, release: Shuffle(Repeat(release, lots)),
    "balls-in-bins": BallsInBins,
}
"""Ways to draw in which a record is in one lot of each pass: the event of one pass, from its lots and their release."""

DRAWN = (POISSON, *PASSES, FIXED_SIZE)
"""Ways to draw lots, by name."""


def training_event(
    rate: float, release: Event, steps: int, drawn: str = POISSON, dataset_size: int | None = None
) -> Event:
    """Returns the event of a training run of `steps` lots of about `rate` × the data, with `release` on each.

    >>> from sordino.events import Gaussian
    >>> training_event(0.01, Gaussian(1.1), 2000)
    Repeat(event=Poisson(rate=0.01, event=Gaussian(multiplier=1.1)), count=2000)
    """
    # Poisson draws are independent, so steps simply repeat.
    if drawn == POISSON:
        return Repeat(Poisson(rate, release), steps)
    if drawn == FIXED_SIZE:
        if dataset_size is None:
            raise ValueError("dataset_size: needed for lots of a fixed size")
        return Repeat(FixedSize(max(1, math.ceil(rate * dataset_size)), dataset_size, release), steps)
    # Passes are charged as a whole: a pass that was begun counts.
    steps = validate.count("steps", steps)
    return passes_event(rate, release, math.ceil(steps / lots_in_a_pass(rate)), drawn)


def passes_event(rate: float, release: Event, passes: int, drawn: str) -> Event:
    """Returns the event of a training run of whole passes over the data in lots of about `rate` × the data."""
    if drawn not in PASSES:
        raise ValueError(f"drawn={drawn!r}: there is {', '.join(PASSES)}")
    return Repeat(PASSES[drawn](lots_in_a_pass(rate), release), passes)


def lots_in_a_pass(rate: float) -> int:
    """Returns the number of whole lots in a pass at this rate, as far as a printed decimal can tell."""
    return math.floor(1 / validate.rate("rate", rate) * (1 + 1e-6))
