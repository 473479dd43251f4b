"""Shuffling: one random pass after another in disjoint batches, as plain training loops do.

Privacy: the known amplification by shuffling is far weaker than Poisson's and must not be confused with it (Chua et al.
2024: at the setting where Poisson gives ε = 1.61, shuffled batches have ε ≥ 7.83). What is claimed here uses only that
a record is in at most one batch of a pass, and so meets one release per pass; about one record's contribution replaced
by nothing, since removing it would move the others between batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from sordino import validate
from sordino.former_names import former_method
from sordino.registry import Declaration, NamedSampler
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw, keep_unamplified

if TYPE_CHECKING:
    from sordino.auditing.selftest_checks.sampler_checks import DrawChecks
    from sordino.auditing.verdict import SelftestFinding


@dataclass(frozen=True)
class Shuffle:
    """Draws passes over the data in random order, cut into batches of `batch_size`; the last may be smaller.

    Args:
        batch_size: records in a batch.

    Privacy:
        A record is in one batch of a pass and pays for one release in full: there is no amplification to speak of.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> sd.dry_run(query, sd.Shuffle(batch_size=100), dataset_size=1000, steps=100)
        Repeat(event=Shuffle(event=Repeat(event=Gaussian(multiplier=1.1), count=10)), count=10)

    """

    batch_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", validate.count("batch_size", self.batch_size))

    @property
    def size_is_public(self) -> bool:
        """Yes: a zeroed record still has its place."""
        return True

    def expected_size(self, n: int) -> float:
        """Returns the batch size, also for the last batch of a pass."""
        return float(min(self.batch_size, n))

    expected = former_method("expected", "expected_size")

    def check_draws(self, checks: DrawChecks) -> list[SelftestFinding]:
        """Returns what a selftest finds of the draws: each record at most once in a pass."""
        return checks.check_passes()

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields the draws of a sampler that shuffles: batch k % m of pass k // m, for m batches a pass and k = start,
        start + 1, …
        """
        # The last batch of a pass may be smaller.
        batches = -(-n // self.batch_size)
        # A resumed run enters its pass in the middle; later passes begin at their first batch.
        epoch, first = divmod(start, batches)
        while True:
            # The order of a pass follows from its number alone, so that it can be resumed in the middle.
            order = rng.child(epoch).permutation(n)
            for batch in range(first, batches):
                rows = order[batch * self.batch_size : (batch + 1) * self.batch_size]
                yield Draw(rows, keep_unamplified, cover=epoch)  # the ledger puts a pass together
            epoch, first = epoch + 1, 0


DECLARED = Declaration(
    (Shuffle,),
    samplers=(
        NamedSampler(
            "shuffle",
            "shuffled passes in disjoint batches, as plain training has them, at their true price",
            lambda rate, records: Shuffle(max(1, round(rate * records))),
            example="sd.Shuffle(batch_size=50)",
        ),
    ),
)
