"""Fixed-size sampling: a uniform subset of exactly b records, drawn anew for every lot.

Privacy: amplification by sampling without replacement (Balle et al. 2018, Wang et al. 2019) holds for one record
*replaced* by another. Then the sum moves by up to twice the bound, and the accountant counts that; it is not the figure
of Poisson sampling.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
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
class FixedSize:
    """Draws a uniform subset of exactly `batch_size` records for every lot.

    Args:
        batch_size: records in every lot.

    Privacy:
        Amplified by sampling without replacement, about one record replaced by another.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> sd.dry_run(query, sd.FixedSize(batch_size=100), dataset_size=1000, steps=100)
        Repeat(event=FixedSize(batch_size=100, dataset_size=1000, event=Gaussian(multiplier=1.1)), count=100)

    """

    batch_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", validate.count("batch_size", self.batch_size))

    @property
    def size_is_public(self) -> bool:
        """Yes: replacing a record leaves the size as it is."""
        return True

    def expected_size(self, n: int) -> float:
        """Returns the fixed size of the lots that are sampled; raises ValueError if the dataset has fewer records."""
        if self.batch_size > n:
            raise ValueError(f"batch_size={self.batch_size}: must be <= the {n} records of the dataset")
        return float(self.batch_size)

    expected = former_method("expected", "expected_size")

    def check_draws(self, checks: DrawChecks) -> list[SelftestFinding]:
        """Returns what a selftest finds of the draws: lots of one size, each record equally often."""
        return checks.check_fixed_size()

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields independent draws of fixed-size sampling, uniform subsets in ascending order."""
        k = start
        while True:
            # The event names both sizes, which are public under replace-one.
            yield Draw(
                draw_subset(n, self.batch_size, rng.child(k)), lambda event: events.FixedSize(self.batch_size, n, event)
            )
            k += 1


def draw_subset(n: int, b: int, rng: Rng) -> NDArray[np.int64]:
    """Returns one draw of fixed-size sampling, a uniform subset of n of size b, ascending: the first b distinct of a
    stream of uniform numbers.
    """
    # More than half of the records: a permutation is cheaper than drawing until enough are distinct.
    if 2 * b > n:
        return np.sort(rng.permutation(n)[:b])
    # Draw numbers until b of them are distinct; for small b this is cheaper than a permutation.
    seen = np.empty(0, dtype=np.int64)
    while True:
        # Sixteen more than are missing, because some will repeat; what is too many is cut at the end.
        seen = np.concatenate([seen, rng.integers(b - len(seen) + 16, n)])
        # By first appearance, not by value: the first b of the ascending numbers would favour small rows.
        _, first = np.unique(seen, return_index=True)
        seen = seen[np.sort(first)]  # distinct, in order of appearance
        if len(seen) >= b:
            return np.sort(seen[:b])


DECLARED = Declaration(
    (FixedSize,),
    samplers=(
        NamedSampler(
            "fixed-size",
            "lots of exactly so many records; neighbours have one record replaced",
            lambda rate, records: FixedSize(max(1, round(rate * records))),
            example="sd.FixedSize(batch_size=50)",
        ),
    ),
)
