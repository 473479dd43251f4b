"""Samplers by name, as their own files declare them, all at about the batch that a recipe's rate stands for."""

from __future__ import annotations

from collections.abc import Mapping

from sordino import sampling
from sordino.declared import NamedSampler
from sordino.sampling.sampler import Sampler

SAMPLERS: Mapping[str, NamedSampler] = {
    one.name: one for declared in sampling.DECLARATIONS for one in declared.samplers
}


def sampler(name: str, rate: float, records: int) -> Sampler:
    """The sampler of this name, for this rate and this public number of records."""
    if name not in SAMPLERS:
        raise ValueError(f"sampler={name!r}: there is {', '.join(SAMPLERS)}")
    return SAMPLERS[name].build(rate, records)
