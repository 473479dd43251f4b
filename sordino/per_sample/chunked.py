"""Per-sample gradients of a lot larger than memory, as batches that are computed one at a time.

The parts can be gone through again: a rule that is fixed beforehand needs them once, whoever looks at the norms of the
whole lot first pays for a second pass. Chunked or whole, the sums are the same up to rounding. They can also be asked
for at other parameters: the same samples, another θ.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.distributed.shared_lot import RankedLot
from sordino.per_sample.materialised import Materialised
from sordino.per_sample.protocol import Norms, PerSample
from sordino.refusal import Refusal
from sordino.release.sensitivity import EXACT, Estimate
from sordino.release.vectors import Grads


def make_empty(parameters: Mapping[str, Tensor], estimate: Estimate = EXACT) -> Materialised:
    """Returns the gradients of no samples: an empty draw is a draw."""
    rows = {name: torch.zeros((0, *p.shape), dtype=p.dtype, device=p.device) for name, p in parameters.items()}
    device = next((row.device for row in rows.values()), torch.device("cpu"))
    return Materialised(rows, torch.zeros(0, device=device), estimate)


@dataclass(frozen=True)
class Chunked:
    """Computes the gradients of a lot part by part.

    `parts()` gives the parts of the lot, from the first, each time it is called; at least one. `parts_at(by)` gives
    them for a model whose parameters are moved by `by`.
    """

    parts: Callable[[], Iterable[PerSample]]
    parts_at: Callable[[Mapping[str, Tensor]], Iterable[PerSample]] | None = None
    records: NDArray[np.int64] | None = None  # which records of the dataset they are, in order; private
    estimate: Estimate = EXACT  # what the norms of its parts are
    sizes: Callable[[], Mapping[str, int]] | None = None  # the elements of each tensor; public
    most: int | None = None  # no part has more records; public
    ranked: RankedLot | None = None  # of several ranks: `parts` are those of this one

    def __iter__(self) -> Iterator[PerSample]:
        """Returns the parts of the whole lot; refuses where other ranks have some of them."""
        # A query that goes through the lot by itself would see only this rank's share.
        if self.ranked is not None and self.ranked.ranks.size > 1:
            raise Refusal(
                "this query goes through the records of a lot by itself.\n"
                "On several ranks each of them has some of the records.\n"
                "Use a query that sums by a clipping rule, such as NoisySum, or one process."
            )
        return self.iterate_local_parts()

    def iterate_local_parts(self) -> Iterator[PerSample]:
        """Yields the parts that this rank computes: all of them, where there are no ranks."""
        yield from self.parts()

    @property
    def losses(self) -> Tensor:
        """Every sample's loss."""
        return torch.cat([part.losses for part in self])

    def norms(self) -> Norms:
        """Returns the norms of all samples of a chunked lot, by a pass over the lot."""
        if self.ranked is None:
            found = [part.norms() for part in self]
            return Norms(torch.cat([norms.squared for norms in found]), found[0].names, found[0].estimate)
        # Where ranks share the lot, each measures its own parts, and all get the norms in the order of the lot.
        try:
            found = [part.norms() for part in self.iterate_local_parts()]
        except Exception as error:
            self.ranked.report_failure(error)
        self.ranked.agree_after_pass(found[0].names)
        squared = self.ranked.gather_in_order([norms.squared for norms in found])
        return Norms(squared, found[0].names, found[0].estimate)

    def dot(self, u: Mapping[str, Tensor]) -> Tensor:
        """Returns ⟨g_i, u⟩ of all samples, by a pass over the lot."""
        return torch.cat([part.dot(u) for part in self])

    def weighted_sum(self, weights: Tensor, into: Grads | None = None) -> Grads:
        """Returns Σ_i w_i g_i over all samples of a chunked lot, by a pass over the lot, with the weights cut to each
        chunk.
        """
        # Weights belong to samples by their place in the lot.
        total, start = into, 0
        for part in self:
            rows = len(part.losses)
            total = part.weighted_sum(weights[start : start + rows], into=total)
            start += rows
        assert total is not None, "a lot has at least one part"
        return total


def move_gradients(grads: PerSample, by: Mapping[str, Tensor]) -> PerSample:
    """Returns the gradients of the same samples at θ + by, chunked: one pass over the lot when they are asked for."""
    # Only a lot of `Private` knows how to compute gradients at another point.
    if not isinstance(grads, Chunked) or grads.parts_at is None:
        raise Refusal(
            f"gradients at other parameters were asked of a {type(grads).__name__}.\n"
            "Only a lot knows how to compute them.\n"
            "Ask the lot that Private hands a query."
        )
    at = grads.parts_at
    return Chunked(lambda: at(by), estimate=grads.estimate, sizes=grads.sizes, most=grads.most, ranked=grads.ranked)
