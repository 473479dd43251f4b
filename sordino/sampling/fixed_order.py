"""A fixed order: the records in batches as they come, one pass after another in the same order.

For streams and single epochs, where nothing is shuffled, and for correlated noise without amplification: a record comes
back after exactly one epoch, and what it can do to the whole phase is known exactly.

Privacy: there is no amplification. With independent noise a record pays for one release per epoch; with correlated noise
the whole phase is one Gaussian release at the sensitivity of the strategy (`matrix_factorization/participation.py`). The
neighbour has a record's contribution replaced by nothing, since removing it would move the others between batches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from sordino import events, validate
from sordino.former_names import former_method
from sordino.registry import Declaration, NamedSampler
from sordino.rng.streams import Rng
from sordino.sampling.sampler import Draw, keep_unamplified

if TYPE_CHECKING:
    from sordino.auditing.selftest_checks.sampler_checks import DrawChecks
    from sordino.auditing.verdict import SelftestFinding


@dataclass(frozen=True)
class FixedOrder:
    """Draws the records in batches of `batch_size` in the order of the dataset; the last of an epoch may be smaller.

    Args:
        batch_size: records in a batch.

    Privacy:
        No amplification; about one record's contribution replaced by nothing. A call of `draws` is charged as a whole.

    Examples:
        >>> import sordino as sd
        >>> query = sd.NoisySum(sd.Flat(1.0), sd.Correlated(3.0, sd.InverseBanded(16)))
        >>> event = sd.dry_run(query, sd.FixedOrder(batch_size=100), dataset_size=1000, steps=20)
        >>> event.separation, event.steps
        (10, 20)

    """

    batch_size: int

    def __post_init__(self) -> None:
        object.__setattr__(self, "batch_size", validate.count("batch_size", self.batch_size))

    @property
    def size_is_public(self) -> bool:
        """Yes: a record that contributes nothing still has its place."""
        return True

    def expected_size(self, n: int) -> float:
        """Returns the batch size, also for the last batch of an epoch."""
        return float(min(self.batch_size, n))

    expected = former_method("expected", "expected_size")

    def check_draws(self, checks: DrawChecks) -> list[SelftestFinding]:
        """Returns what a selftest finds of the draws: the same disjoint lots in every pass."""
        return checks.check_fixed_order()

    def draws(self, n: int, rng: Rng, start: int) -> Iterator[Draw]:
        """Yields the draws of sampling in a fixed order: batch k mod m of n records in m batches, for k = start, start
        + 1, …
        """
        # No random numbers at all: batch k mod m is rows in the order in which they are stored.
        batches = -(-n // self.batch_size)
        # A record comes back after exactly `batches` steps: the separation that the sensitivity is computed for.
        of_phase = partial(phase_event, batches)
        k = start
        while True:
            first = k % batches * self.batch_size
            rows = np.arange(first, min(n, first + self.batch_size), dtype=np.int64)
            yield Draw(rows, keep_unamplified, cover=0, of_phase=of_phase)
            k += 1


def phase_event(separation: int, steps: int, event: events.Event) -> events.Event:
    """Returns the event of all steps of a phase, from what is released on each of them."""
    return events.FixedOrder(steps, separation, event)


DECLARED = Declaration(
    (FixedOrder,),
    samplers=(
        NamedSampler(
            "fixed-order",
            "batches in the order of the data, the same in every epoch, as a stream has them",
            lambda rate, records: FixedOrder(max(1, round(rate * records))),
            example="sd.FixedOrder(batch_size=50)",
        ),
    ),
)
