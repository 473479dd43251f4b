"""Padding: fills every batch of a lot up to one size, so that all passes of a run have one shape.

A lot of b records is processed as batches of `rows` rows. Rows that are missing are filled with copies of the batch's own
records, and a batch that would be empty with zeros. The gradients of these rows are computed and left out at once: clipping
rules, tallies and checks see the norms and losses of the b records alone, and in the sum every added row has weight 0.

    Σ_{i<b} w_i g_i + Σ_{i≥b} 0 · g_i

Privacy: 0 · g is 0 whatever the row holds, so the sum is that of the records, to the last bit for every content of the
added rows. The size and the number of a lot's batches follow from the sampler's largest lot, which is public, and so tell
nothing about how many records were drawn. A lot that takes several passes is cut in the order of its records. There one
record more moves the others on, which changes the rounding of every batch's sum: the noise is raised by the slack of all
of them together (`rows_rounded_together`), and not of one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from sordino.lots.loading import CuttingInTurn, Indices
from sordino.per_sample.batch_structure import batch_size, map_tensors, take_rows
from sordino.per_sample.materialised import Materialised
from sordino.per_sample.protocol import Norms, PerSample, sums_one_by_one
from sordino.refusal import Refusal
from sordino.release.rounding import MOST_ROWS, OWN_ROUNDING_ROWS
from sordino.release.vectors import Grads
from sordino.sampling.sampler import Sampler


@dataclass(frozen=True)
class CuttingInOrder(CuttingInTurn):
    """Cuts a lot into full batches, in the order of its records; only the last one may be smaller."""

    def cut(self, indices: Indices, physical_batch: int, records: int | None) -> list[Indices]:
        """Returns the batches of a lot that have records; there may be fewer than the lot has passes."""
        return [indices[k : k + physical_batch] for k in range(0, len(indices), physical_batch)]


IN_ORDER = CuttingInOrder(0, 1)
"""The cutting of padded lots, in one process."""


@dataclass
class LotPadding:
    """The one shape of a run's passes: so many rows, so many passes for each lot."""

    rows: int
    passes: int
    blank: Any
    """A batch of that many rows of zeros, for a pass that has no records."""
    has_seen_records: bool = False
    """Whether records were computed on. The engine is verified on its first batch, which must not be one of zeros."""

    @staticmethod
    def create(sampler: Sampler, n: int, physical_batch: int, example: Any) -> LotPadding:
        """Returns the padding of lots that a sampler draws of n records, with at most `physical_batch` rows in a pass.

        Args:
            sampler: must have a public largest size.
            n: the number of records.
            physical_batch: the most rows of one pass.
            example: a batch of any records, for the kinds and shapes of its tensors.

        Raises:
            Refusal: the sampler's lots have no largest size, or it is too large for sums in float32.

        """
        largest = _find_largest_lot(sampler, n)
        passes = -(-largest // physical_batch)
        rows = -(-largest // passes)
        one = take_rows(example, slice(0, 1))
        zeros = map_tensors(lambda leaf: leaf.new_zeros((rows, *leaf.shape[1:])), one)
        padding = LotPadding(rows, passes, zeros)
        if padding.rows_rounded_together > MOST_ROWS:
            raise Refusal(
                f"pad_lots=True with lots of up to {largest} records, in {passes} passes.\n"
                "One record may move the rounding of all of their sums, which would cost more than a quarter more "
                "noise.\n"
                "Draw smaller lots, or leave pad_lots out."
            )
        return padding

    @property
    def rows_rounded_together(self) -> int:
        """As how many records' sum the sums of all passes of a lot are rounded (`release/rounding.py`); public."""
        return self.passes * (self.rows + OWN_ROUNDING_ROWS) - OWN_ROUNDING_ROWS

    def fill(self, batch: Any) -> Any:
        """Returns a batch of records filled up to `rows` rows by repeating them; a larger one as it is."""
        b = batch_size(batch)
        if b >= self.rows:
            self.has_seen_records = True
            return batch
        if not b:
            return self.blank
        self.has_seen_records = True
        places = torch.arange(self.rows) % b
        return map_tensors(lambda leaf: leaf.index_select(0, places.to(leaf.device)), batch)


def refuse_to_pad(*, ranks: bool, unit: bool, isolate: bool) -> None:
    """Raises Refusal where lots cannot be padded: on ranks, of units, or with records computed on one by one."""
    reasons = {
        "several ranks, which cut lots by the numbers of the records": ranks,
        "units, which have different numbers of records": unit,
        "isolate=True, which computes on each record by itself": isolate,
    }
    for reason, applies in reasons.items():
        if applies:
            raise Refusal(
                f"pad_lots=True was given beside {reason}.\n"
                "Padding gives whole batches of one process's records one shape.\n"
                "Leave pad_lots out."
            )


def _find_largest_lot(sampler: Sampler, n: int) -> int:
    """Returns the size that lots are padded to: the most records that a sampler draws; raises Refusal where there is no
    public number.
    """
    found = getattr(sampler, "max_batch", None) or getattr(sampler, "batch_size", None)
    if isinstance(found, int):
        return min(found, n) if sampler.size_is_public else found
    rate = getattr(sampler, "rate", 0.01)
    likely = max(1, round(1.25 * sampler.expected_size(n)))
    raise Refusal(
        f"pad_lots=True was given beside {type(sampler).__name__}, whose lots have no largest size.\n"
        "Lots can be filled up to one size only if none is larger.\n"
        f"Use a sampler that cuts them, such as sd.TruncatedPoisson(rate={rate:g}, max_batch={likely})."
    )


def keep_first_rows(part: PerSample, rows: int) -> PerSample:
    """Returns the gradients of the first rows of a padded batch; the others have no weight in any sum."""
    # A batch that was not filled up is as it should be.
    if len(part.losses) == rows:
        return part
    if isinstance(part, Materialised):
        return replace(part, rows={name: g[:rows] for name, g in part.rows.items()}, losses=part.losses[:rows])
    return _FirstRows(part, rows)


@dataclass(frozen=True)
class _FirstRows:
    """The gradients of the first `count` samples of a padded batch, as `PerSample` wants them."""

    padded: PerSample
    count: int

    @property
    def losses(self) -> Tensor:
        """The losses of these samples."""
        return self.padded.losses[: self.count]

    def norms(self) -> Norms:
        """Returns the norms of these samples."""
        found = self.padded.norms()
        return Norms(found.squared[: self.count], found.names, found.estimate)

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns the inner products of these samples' gradients with `u`."""
        return self.padded.dot(u)[: self.count]

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns the weighted sum of these samples; all other rows of the batch have weight 0."""
        return self.padded.weighted_sum(self._weights_of_all_rows(weights), into)

    def sums(self, weights: Tensor) -> Iterator[tuple[str, Tensor]]:
        """Yields the sums of `weighted_sum` one parameter at a time."""
        yield from sums_one_by_one(self.padded, self._weights_of_all_rows(weights))

    def _weights_of_all_rows(self, weights: Tensor) -> Tensor:
        added = len(self.padded.losses) - self.count
        return torch.cat([weights, weights.new_zeros(added, weights.shape[1])])
