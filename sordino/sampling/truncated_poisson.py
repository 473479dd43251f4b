"""Truncated Poisson sampling: Poisson's lots, of which none is larger than a given size.

Every record flips its own coin; if more than `max_batch` come up heads, a uniformly random part of so many stays. Lots that
are filled up to one size have one shape, as compiled models want it.

Privacy: cutting couples the records, because a record that comes in may push another one out. The price is a little above
Poisson's (Ganesh et al. 2025, arXiv:2508.15089), and needs the number of records to be public.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from sordino import events, validate
from sordino.former_names import former_method
from sordino.registry import Declaration, NamedSampler
from sordino.rng.streams import Rng
from sordino.sampling.poisson import flip_coins
from sordino.sampling.sampler import Draw

if TYPE_CHECKING:
    from sordino.auditing.selftest_checks.sampler_checks import DrawChecks
    from sordino.auditing.verdict import SelftestFinding


@dataclass(frozen=True)
class TruncatedPoisson:
    """Draws each record with probability `rate`, and keeps a random part of `max_batch` if there are more.

    Args:
        rate: the probability, above 0 and at most 1.
        max_batch: the most records of a lot.

    Privacy:
        Amplified by sampling, about one record added or removed; a little dearer than `Poisson`. How many records a lot
        has stays private.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> sd.dry_run(query, sd.TruncatedPoisson(rate=0.01, max_batch=20), dataset_size=1000, steps=5).event.max_batch
        20

    """

    rate: float
    max_batch: int
    tells_size: ClassVar[bool] = True
    """The price is a function of the number of records, and is printed."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rate", validate.rate("rate", self.rate))
        object.__setattr__(self, "max_batch", validate.count("max_batch", self.max_batch))

    @property
    def size_is_public(self) -> bool:
        """No: the neighbour has one record more or fewer."""
        return False

    def expected_size(self, n: int) -> float:
        """Returns rate × n, or `max_batch` if that is smaller."""
        return min(self.rate * n, float(self.max_batch))

    expected = former_method("expected", "expected_size")

    def check_draws(self, checks: DrawChecks) -> list[SelftestFinding]:
        """Returns what a selftest finds of the draws: no lot above the largest size."""
        return checks.check_largest_size()

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields independent draws of truncated Poisson sampling, each with its records in ascending order."""
        # The neighbour may have one record more, and more records are cut more often.
        amplify = partial(amplify_draw, self.rate, n + 1, self.max_batch)
        k = start
        while True:
            # Whoever is cut is chosen at random and independently of what the records hold.
            coins = rng.child(k)
            rows = flip_coins(n, self.rate, coins)
            # The permutation comes from the same stream, after the coins: the number of a draw fixes who is cut.
            if len(rows) > self.max_batch:
                rows = np.sort(rows[coins.permutation(len(rows))[: self.max_batch]])
            yield Draw(rows, amplify)
            k += 1


def amplify_draw(rate: float, records: int, max_batch: int, event: events.Event) -> events.Event:
    """Returns the event of a release on a draw."""
    return events.TruncatedPoisson(rate, records, max_batch, event)


DECLARED = Declaration(
    (TruncatedPoisson,),
    samplers=(
        NamedSampler(
            "truncated-poisson",
            "each record is in a lot by its own coin, and no lot is larger than a quarter above its expected size",
            lambda rate, records: TruncatedPoisson(rate, max(1, round(1.25 * rate * records))),
            example="sd.TruncatedPoisson(rate=0.1, max_batch=130)",
        ),
    ),
)
