"""Poisson sampling: every record flips its own coin.

The gaps between the records that take part are geometric, so a draw costs O(rate · n) and not O(n):
    gap = 1 + ⌊ln u / ln(1 − q)⌋.

Privacy: amplification by Poisson sampling (Li et al. 2012; for the Gaussian Abadi et al. 2016), about one record added
or removed. The realised size of a lot is private.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sordino import events, validate
from sordino.former_names import former_method
from sordino.registry import Declaration, NamedSampler
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw

if TYPE_CHECKING:
    from sordino.auditing.selftest_checks.sampler_checks import DrawChecks
    from sordino.auditing.verdict import SelftestFinding


@dataclass(frozen=True)
class Poisson:
    """Draws each record into a lot with probability `rate`, independently.

    Args:
        rate: the probability, above 0 and at most 1. rate × N records are in a lot on average.

    Privacy:
        Amplified by sampling, about one record added or removed. How many records a lot has stays private.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> sd.dry_run(query, sd.Poisson(rate=0.01), dataset_size=1000, steps=100)
        Repeat(event=Poisson(rate=0.01, event=Gaussian(multiplier=1.1)), count=100)

    """

    rate: float

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", validate.rate("rate", self.rate))

    @property
    def size_is_public(self) -> bool:
        """No: the neighbour has one record more or fewer."""
        return False

    def expected_size(self, n: int) -> float:
        """Returns rate × n, the expected size of a lot."""
        return self.rate * n

    expected = former_method("expected", "expected_size")

    def check_draws(self, checks: DrawChecks) -> list[SelftestFinding]:
        """Returns what a selftest finds of the draws: every record by a coin of its own."""
        return checks.check_coins()

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields independent draws of Poisson sampling, each with its records in ascending order."""
        # Every draw has a stream of its own, so draw k is the same whether or not the draws before it were made.
        amplify = partial(events.Poisson, self.rate)
        k = start
        while True:
            yield Draw(flip_coins(n, self.rate, rng.child(k)), amplify)
            k += 1


def flip_coins(n: int, rate: float, rng: Rng) -> NDArray[np.int64]:
    """Returns the records whose coins come up heads in one draw of Poisson sampling, ascending."""
    if rate == 1.0:
        return np.arange(n, dtype=np.int64)
    mean = n * rate
    # Draw the gaps in blocks until the last position is past the end.
    block = int(mean + 6 * math.sqrt(mean) + 16)  # almost always enough at once
    positions_by_block: list[NDArray[np.float64]] = []
    last = -1.0
    while last < n:
        # gap = 1 + ⌊ln u / ln(1 − q)⌋
        gaps = np.floor(np.log(rng.uniform(block)) / math.log1p(-rate)) + 1
        positions = last + np.cumsum(gaps)
        positions_by_block.append(positions[positions < n])
        last = float(positions[-1])
    return np.concatenate(positions_by_block).astype(np.int64)


DECLARED = Declaration(
    (Poisson,),
    samplers=(
        NamedSampler(
            "poisson",
            "each record is in a lot by its own coin",
            lambda rate, records: Poisson(rate),
            example="sd.Poisson(rate=0.1)",
        ),
    ),
)
