"""Ranks compare everything that a claim depends on, before anything is drawn or released.

`DistributedRun` collects the facts when `draws` is called: query, loss, model, data, sampler, settings, ledger,
versions. All ranks meet over one digest of them. Where the digests differ the facts themselves are exchanged, and every
rank raises the same error, which names what differs. After that a digest at every lot (`shared_lot.py`) keeps the ranks
together.

Privacy: the meeting comes before the first draw, so a run whose ranks disagree has released nothing and is charged nothing.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable
from typing import TypeVar

import torch

from sordino.distributed.agreement_digest import wrap_to_64_bits
from sordino.distributed.claim_facts import ClaimFacts, describe_differences
from sordino.distributed.process_group import Ranks, ranks_of
from sordino.distributed.shared_lot import Disagreement, StoppedElsewhere

T = TypeVar("T")
_MOST_NAMED = 12


def collect_and_agree(ranks: Ranks, collect: Callable[[], tuple[T, ClaimFacts]]) -> T:
    """Collects claim facts on every rank and returns what `collect` made, once all ranks are in agreement about them.

    Args:
        ranks: the processes of the run. A group of one agrees with itself, and nothing is sent.
        collect: makes something from this rank's arguments, and the facts about it.

    Raises:
        Disagreement: on every rank, with the names of the facts that differ.
        StoppedElsewhere: on a rank that is fine, where `collect` raised on another one.

    """
    # A rank that fails still meets the others, so that they stop instead of waiting.
    try:
        made, facts = collect()
    except Exception:
        meet_over(ranks, None)
        raise
    meet_over(ranks, facts)
    return made


def agree_within_group(add: Callable[[ClaimFacts, bytes], None]) -> None:
    """Brings the ranks of torch's own process group to agreement about facts, if there is a group; all of its ranks
    must call this.

    Two ranks that add one noise to two different sums, and both hand out the result, have told the difference of the sums.

    Args:
        add: adds the facts; it is given the key for digests of private records.

    Raises:
        Disagreement: on every rank, with the names of the facts that differ.

    """
    # A single process agrees with itself.
    ranks = ranks_of(None)
    if ranks is None or ranks.size == 1:
        return
    # Digests of data are keyed, so that what a rank sends tells nobody who does not know the key anything about its
    # records.
    key = bytes(ranks.broadcast_from_first(secrets.token_bytes(32)))

    def collect() -> tuple[None, ClaimFacts]:
        facts = ClaimFacts(b"", ranks.rank)
        add(facts, key)
        return None, facts

    collect_and_agree(ranks, collect)


def meet_over(ranks: Ranks, facts: ClaimFacts | None) -> None:
    """Meets all ranks once for an agreement and raises on each of them unless all have the same facts; None: this rank
    has failed.
    """
    # One sum carries everything: whether somebody failed, and the sum of the digests.
    known = 0 if facts is None else int.from_bytes(facts.digest()[:8], "little", signed=True)
    words = torch.tensor([facts is None, 0, known, 0], dtype=torch.int64, device=ranks.device)
    failures, _, digests, _ = ranks.sum_(words).tolist()
    if facts is None:
        return  # the caller raises what it met
    if failures:
        raise StoppedElsewhere("another rank met an error before the first draw and stopped; its own message says why")
    if not is_unanimous(ranks, known, digests):
        raise_differences(ranks, facts)


def is_unanimous(ranks: Ranks, known: int, digests: int) -> bool:
    """Returns whether the sum of all ranks' digests is that of ranks which all have this one."""
    return digests == wrap_to_64_bits(known * ranks.size)


def raise_differences(ranks: Ranks, facts: ClaimFacts) -> None:
    """Exchanges the facts that a failed agreement was about and raises an error that names those which differ between
    ranks.
    """
    # Only on disagreement the facts themselves are exchanged, to name what differs.
    lines = describe_differences(ranks.gather_objects(facts.facts))
    named = "\n".join(f"  {line}" for line in lines[:_MOST_NAMED])
    more = f"\n  and {len(lines) - _MOST_NAMED} more" if len(lines) > _MOST_NAMED else ""
    raise Disagreement(
        f"the ranks do not agree, so nothing was drawn or released. They differ in\n{named}{more}\n"
        "One claim is made for all ranks, so each must ask the same of the same records. "
        "Give all ranks the same model, loss, query, data, seed and settings."
    )
