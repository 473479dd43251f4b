"""Full-batch sampling: every record is in every lot, as in DP gradient descent.

Privacy: no amplification; one record added or removed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from sordino.former_names import former_method
from sordino.registry import Declaration, Method, NamedSampler
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw, keep_unamplified

if TYPE_CHECKING:
    from sordino.auditing.selftest_checks.sampler_checks import DrawChecks
    from sordino.auditing.verdict import SelftestFinding


@dataclass(frozen=True)
class Full:
    """Draws the whole dataset for every lot.

    Privacy:
        Nothing is amplified: every record is in every lot.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.1))
        >>> sd.dry_run(query, sd.Full(), dataset_size=1000, steps=100)
        Repeat(event=Gaussian(multiplier=1.1), count=100)

    """

    @property
    def size_is_public(self) -> bool:
        """No: the neighbour has one record more or fewer."""
        return False

    def expected_size(self, n: int) -> float:
        """Returns n."""
        return float(n)

    expected = former_method("expected", "expected_size")

    def check_draws(self, checks: DrawChecks) -> list[SelftestFinding]:
        """Returns what a selftest finds of the draws: every record is in every lot."""
        return checks.check_everybody()

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields the full batch, a draw of all records, again and again."""
        every = Draw(np.arange(n, dtype=np.int64), keep_unamplified)
        while True:
            yield every


DECLARED = Declaration(
    (Full,),
    methods=(Method("dp-gd", "all records in every step, no amplification", words={"sampler": "full"}),),
    samplers=(
        NamedSampler(
            "full",
            "every record in every step: DP gradient descent",
            lambda rate, records: Full(),
            example="sd.Full()",
        ),
    ),
)
