"""Finds public numbers of a run that tell, or may tell, how many records there are.

Such are the divisor of a run that was given none, and a rate or a divisor that the user computed from N.

The rate is printed with the claim and `expected_batch` shows in every step, so a number made of N tells N. What can be
seen is that it fits: 256 / N times N is a whole number to the last digit, and a rate chosen without N almost never is.
It is evidence, not proof, so the claim says "may". A number of few digits is taken to be chosen: Poisson(0.01) fits
many N.

Privacy: nothing is changed or refused. The claim lists what it does not cover.
"""

from __future__ import annotations

import math

from sordino.ledger import claims
from sordino.sampling.sampler import Sampler

_EXACT = 1e-11
"""The relative error up to which a number counts as whole: a quotient and a product of doubles round to 2e-16 each."""
_CHOSEN_RATE, _CHOSEN_BATCH = 4, 2
"""Digits up to which a number is taken to be chosen and not computed."""


def numbers_telling_size(sampler: Sampler, n: int, expected_batch: float | None) -> list[str]:
    """Returns what the claim must name because the sampling rate or the divisor may disclose the size of the dataset.

    >>> from sordino.sampling.poisson import Poisson
    >>> numbers_telling_size(Poisson(256 / 50_021), 50_021, None), numbers_telling_size(Poisson(0.01), 50_021, None)
    (['dataset size, by the rate'], [])
    """
    if sampler.size_is_public:
        return []
    names = []
    # Every number strictly between 0 and 1 in the sampler may be a rate.
    rates = [value for value in getattr(sampler, "__dict__", {}).values() if isinstance(value, float) and 0 < value < 1]
    if any(_is_computed_from_size(rate, n) for rate in rates):
        names.append(claims.BY_THE_RATE)
    # A divisor that equals rate × N, exactly or rounded, was probably computed from N.
    if expected_batch is not None and not _has_few_digits(expected_batch, _CHOSEN_BATCH):
        expected = sampler.expected_size(n)
        if abs(expected_batch - expected) <= _EXACT * expected or expected_batch == round(expected):
            names.append(claims.BY_THE_BATCH)
    return names


def size_not_covered(sampler: Sampler, n: int, expected_batch: float | None) -> list[str]:
    """Returns all disclosures of the dataset's size that the claim must name: a step divided by rate × N shows N too."""
    shows = expected_batch is None or getattr(sampler, "tells_size", False)  # an event that names the size shows it too
    divided = [claims.DATASET_SIZE] if shows and not sampler.size_is_public else []
    return [*divided, *numbers_telling_size(sampler, n, expected_batch)]


def _is_computed_from_size(rate: float, n: int) -> bool:
    """Returns whether the sampling rate discloses the size N: it is k / N or k / √N for a whole k."""
    return not _has_few_digits(rate, _CHOSEN_RATE) and (
        _is_nearly_whole(rate * n) or _is_nearly_whole(rate * math.sqrt(n))
    )


def _has_few_digits(value: float, digits: int) -> bool:
    return float(f"{value:.{digits}g}") == value


def _is_nearly_whole(value: float) -> bool:
    return round(value) > 0 and abs(value - round(value)) <= _EXACT * value
