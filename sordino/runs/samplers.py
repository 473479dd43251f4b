"""Samplers by name, all at about the batch that a recipe's rate stands for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from sordino.sampling import BallsInBins, FixedSize, Full, Poisson, Sampler, Shuffle

SAMPLERS: Mapping[str, Callable[[float, int], Sampler]] = {
    "poisson": lambda rate, records: Poisson(rate),
    "balls-in-bins": lambda rate, records: BallsInBins(max(1, round(1 / rate))),
    "shuffle": lambda rate, records: Shuffle(max(1, round(rate * records))),
    "fixed-size": lambda rate, records: FixedSize(max(1, round(rate * records))),
    "full": lambda rate, records: Full(),
}
"""From a rate and the public number of records to a sampler."""


def sampler(name: str, rate: float, records: int) -> Sampler:
    """The sampler of this name."""
    if name not in SAMPLERS:
        raise ValueError(f"sampler={name!r}: there is {', '.join(SAMPLERS)}")
    return SAMPLERS[name](rate, records)
