"""Shared lot: which chunks this rank computes, and what ranks agree on before a release.

A lot is cut into chunks by public numbers, the same for any number of ranks; chunk c belongs to rank c mod W. A meeting is
one all-reduce of four numbers, before the sum itself is sent:

    failed, noticed, digest, covered

`digest` is 64 bits of what must be the same everywhere: the draw and its records, positions of the random streams, the
query's state, the ledger's length, the parameters, the grid of the sum. If all have D the digests add up to W·D mod 2⁶⁴.
`covered` has one number for each chunk that was computed; they add up to those of all chunks if each was computed once.

Privacy: a disagreement stops the lot before its release, and the draw stays charged. What one rank
notices about its own records (a failure, a broken promise) is told to all, so that none waits for another for ever and all
make the same claim.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import torch
from torch import Tensor

from sordino.distributed.agreement_digest import digest_of, sum_of_marks, wrap_to_64_bits
from sordino.distributed.process_group import Ranks
from sordino.rng.streams import Rng

if TYPE_CHECKING:
    from sordino.distributed.collectives_on_demand import CollectiveRounds

T = TypeVar("T")
_SUM, _END = "the sum of a lot", "the end of the draws"


class Disagreement(RuntimeError):
    """The ranks are not doing the same; nothing was released."""


class StoppedElsewhere(RuntimeError):
    """Another rank met an error; its own message says which."""


@dataclass
class RankedLot:
    """What one rank knows of a lot that all compute together."""

    ranks: Ranks
    numbers: Sequence[int]  # the chunks of this rank
    chunks: int  # of all
    most_chunks: int  # of any rank
    known: int  # a digest of what all must have in common
    stream: Rng  # the same on all: what a forward pass draws is a function of the lot, the pass and the chunk
    find_reason: Callable[[], str | None]  # why there is no guarantee any more, if this rank knows
    void: Callable[[str], None]
    shards: Mapping[str, Tensor] | None = None  # the parameters, where each rank holds some rows of them
    rounds: CollectiveRounds | None = None  # where sums are brought together one parameter at a time
    passes: int = 0
    seen: list[int] = field(default_factory=list)  # chunks computed in this pass

    def begin_pass(self) -> int:
        """Begins a pass over the lot and returns its seed."""
        self.passes, self.seen = self.passes + 1, []
        return self.stream.child("pass", self.passes).seed()

    def begin_chunk(self, place: int) -> int:
        """Begins the chunk at this place among those of this rank and returns its seed."""
        self.seen.append(self.numbers[place])
        return self.stream.child("chunk", self.passes, self.numbers[place]).seed()

    def agree_after_pass(self, *facts: Any, failed: bool = False) -> None:
        """Meets the other ranks after a pass over the shared lot, and raises on all of them if one has failed.

        Raises on all ranks unless all have the same facts and every chunk was computed once.
        """
        known = digest_of(_SUM, self.known, self.passes, *facts)
        meet_all_ranks(
            self.ranks,
            known,
            self.find_reason,
            self.void,
            failed,
            sum_of_marks(known, self.seen),
            sum_of_marks(known, range(self.chunks)),
        )

    def report_failure(self, error: BaseException) -> NoReturn:
        """Tells the ranks that share the lot that there will be no sum, and raises the error."""
        try:
            self.agree_after_pass(failed=True)
        except (Disagreement, StoppedElsewhere):
            raise error from None
        raise error

    def any_rank(self, condition: bool) -> bool:
        """Returns whether any rank found so."""
        words = torch.tensor([0, 0, 0, condition], dtype=torch.int64, device=self.ranks.device)
        return bool(self.ranks.sum_(words)[3] > 0)

    def sum_over_chunks(self, rows: Sequence[Tensor]) -> Tensor:
        """Returns Σ over all chunks of a shared lot, on all ranks, of one small vector per chunk; exact before it is
        rounded once.

        `rows` are the vectors of this rank's chunks.
        """
        places = max(1, self.most_chunks)
        given = torch.stack(list(rows)).double().cpu()  # (places here, K)
        padded = torch.zeros(places * given.shape[1], dtype=torch.float64)
        padded[: given.numel()] = given.flatten()
        every = self.ranks.all_gather(padded.to(self.ranks.device)).view(-1, given.shape[1]).cpu()
        totals = [math.fsum(column) for column in every.T.tolist()]
        return torch.tensor(totals, dtype=torch.float64).to(rows[0])

    def gather_in_order(self, parts: Sequence[Tensor]) -> Tensor:
        """Returns the rows of all chunks of a shared lot in the order of the lot; `parts` are those of this rank's
        chunks.
        """
        mine = list(zip(self.numbers, [part.cpu() for part in parts], strict=False))  # an empty rank has an empty part
        ordered = sorted(
            (pair for pairs in self.ranks.gather_objects(mine) for pair in pairs), key=lambda pair: int(pair[0])
        )
        return torch.cat([part for _, part in ordered] or [parts[0]]).to(parts[0].device)


def meet_all_ranks(
    ranks: Ranks,
    known: int,
    find_reason: Callable[[], str | None],
    void: Callable[[str], None],
    failed: bool = False,
    covered: int = 0,
    wanted: int = 0,
) -> None:
    """Meets all ranks that share a lot, by one all-reduce of four numbers: failures, reasons against a claim, a digest,
    and the chunks computed.

    Raises on all ranks if one has failed or if they disagree; passes on what one rank noticed against a claim.
    """
    # Numbers add up over the ranks, so one all-reduce tells everything.
    reason = find_reason()
    words = torch.tensor([failed, reason is not None, known, covered], dtype=torch.int64, device=ranks.device)
    failures, notices, digests, chunks = ranks.sum_(words).tolist()
    if failures and not failed:
        raise StoppedElsewhere("another rank met an error in this lot and stopped; its own message says why")
    _raise_unless_agreed(ranks, known, digests, None if failed else (chunks, wanted))
    # A broken promise that one rank saw voids the claim on all of them, in its words.
    if notices:
        first = next(found for found in ranks.gather_objects(reason) if found is not None)
        if reason is None:
            void(first)


def check_in_step(ranks: Ranks, what: str, number: int, condition: bool = False) -> bool:
    """Checks before a collective that all ranks of a shared lot are here for the same thing; returns whether
    `condition` holds on any of them.

    Ranks that have lost step would otherwise wait inside different collectives, or take one's numbers for another's.
    """
    known = digest_of(what, number)
    words = torch.tensor([False, condition, known, 0], dtype=torch.int64, device=ranks.device)
    failures, finds, digests, _ = ranks.sum_(words).tolist()
    if failures:
        raise StoppedElsewhere("another rank met an error and stopped; its own message says why")
    _raise_unless_agreed(ranks, known, digests, None)
    return bool(finds)


def _raise_unless_agreed(ranks: Ranks, known: int, digests: int, chunks: tuple[int, int] | None) -> None:
    """Raises unless all ranks that share a lot have the same digest and every chunk of the lot was computed once."""
    # A sum of digests over all ranks equals size × digest exactly if they agree, except by a chance of 2⁻⁶⁴.
    if digests != wrap_to_64_bits(known * ranks.size):
        raise Disagreement(
            "the ranks do not agree: they differ in the draw, the parameters, the query's state, the ledger or the grid of "
            "the sum, so nothing was released; give all ranks the same model, data, query, seed and settings, run the same "
            "loop on all of them, and leave out no lot on any"
        )
    # A chunk that was left out or counted twice would change a record's reach.
    if chunks is not None and chunks[0] != chunks[1]:
        raise Disagreement(
            "a chunk of the lot was computed twice, or by nobody, so nothing was released; this is a bug of the library or "
            "of a dataset that has another length on another rank"
        )


def meet_at_the_end(
    ranks: Ranks, facts: Sequence[Any], find_reason: Callable[[], str | None], void: Callable[[str], None]
) -> None:
    """Meets all ranks after the last shared lot, so that all have the same parameters and know the same against a
    claim.
    """
    meet_all_ranks(ranks, digest_of(_END, *facts), find_reason, void)


def first_finding(ranks: Ranks, work: Callable[[], T | None], *facts: Any) -> T | None:
    """Returns the finding of the first rank, of those that share a lot, on which `work` found anything.

    All ranks do the same work, and an error of one ends it for all.
    """

    def meet_others(failed: bool) -> None:
        meet_all_ranks(ranks, digest_of(*facts), lambda: None, lambda reason: None, failed)

    # An error here must not leave the others waiting in a collective.
    try:
        finding = work()
    except Exception as error:
        try:
            meet_others(failed=True)
        except Disagreement:
            raise error from None
        raise
    # Every rank takes part in the exchange, whether or not it found anything.
    meet_others(failed=False)
    return next((each for each in ranks.gather_objects(finding) if each is not None), None)
