"""Balls-in-bins sampling: in every pass each record goes to one of t lots, chosen uniformly.

Every record is used exactly once a pass, as when shuffling, but records choose independently, so the sizes of lots
vary. This is what to use instead of `Shuffle`: fixed passes over the data at about the price of Poisson sampling.

Privacy: a record's lot in a pass is a secret uniform choice (random allocation, Chua et al. 2025, Feldman & Shenfeld
2025). The guarantee is for one record added or removed. A pass that is cut short is charged as a whole one; if the lots of
a pass have different releases, every lot is charged with all of them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sordino import validate
from sordino.former_names import former_method
from sordino.registry import Declaration, NamedSampler
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw, keep_unamplified

if TYPE_CHECKING:
    from sordino.auditing.selftest_checks.sampler_checks import DrawChecks
    from sordino.auditing.verdict import SelftestFinding


@dataclass(frozen=True)
class BallsInBins:
    """Draws passes over the data in `bins` lots; each record is in one of them, chosen uniformly and independently.

    Args:
        bins: lots in a pass; a lot has N / `bins` records on average.

    Privacy:
        The amplification is nearly that of Poisson sampling, for one record added or removed. A pass is charged as a whole.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> sd.dry_run(query, sd.BallsInBins(bins=10), dataset_size=1000, steps=100)
        Repeat(event=BallsInBins(bins=10, event=Gaussian(multiplier=1.1)), count=10)

    """

    bins: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "bins", validate.count("bins", self.bins))

    @property
    def size_is_public(self) -> bool:
        """False: a neighbouring dataset has one record more or fewer, so the size of a lot tells of it."""
        return False

    def expected_size(self, n: int) -> float:
        """Returns n / bins, the expected size of a lot."""
        return n / self.bins

    expected = former_method("expected", "expected_size")

    def check_draws(self, checks: DrawChecks) -> list[SelftestFinding]:
        """Returns what a selftest finds of the draws: each record at most once in a pass."""
        return checks.check_passes()

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields lot k % bins of pass k // bins of balls-in-bins sampling, for k = start, start + 1, …"""
        # A pass follows from its number alone, so a resumed run cuts it in the same way.
        epoch, first = divmod(start, self.bins)
        while True:
            # Every record chooses its own bin; sorting by bin gives each lot as a slice.
            choice = rng.child(epoch).integers(n, self.bins)
            order = np.argsort(choice, kind="stable")
            ends = np.searchsorted(choice[order], np.arange(self.bins + 1))
            # The event is left as it is: the ledger charges the lots of one `cover` together, as one random allocation.
            for bin_ in range(first, self.bins):
                yield Draw(order[ends[bin_] : ends[bin_ + 1]], keep_unamplified, cover=epoch, bins=self.bins)
            epoch, first = epoch + 1, 0


DECLARED = Declaration(
    (BallsInBins,),
    samplers=(
        NamedSampler(
            "balls-in-bins",
            "every record chooses one lot of each pass in secret",
            lambda rate, records: BallsInBins(max(1, round(1 / rate))),
            example="sd.BallsInBins(bins=10)",
        ),
    ),
)
