"""Samplers by name, as their own files declare them, all at about the batch that a recipe's rate stands for."""

from __future__ import annotations

from collections.abc import Mapping

from sordino import sampling
from sordino.declared import NamedSampler
from sordino.sampling.sampler import Sampler

_FIRST = "poisson"

SAMPLERS: Mapping[str, NamedSampler] = {
    one.name: one
    for one in sorted(
        (one for declared in sampling.DECLARATIONS for one in declared.samplers),
        key=lambda one: (one.name != _FIRST, one.name),
    )
}


def sampler(name: str, rate: float, records: int) -> Sampler:
    """The sampler of this name, for this rate and this public number of records."""
    if name not in SAMPLERS:
        raise ValueError(f"sampler={name!r}: there is {', '.join(SAMPLERS)}")
    return SAMPLERS[name].build(rate, records)
