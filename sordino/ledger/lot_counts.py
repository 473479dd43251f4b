"""Lot counts: how many lots were drawn, had the neighbour test, or fed no optimizer step."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class LotCounts(NamedTuple):
    """What became of the lots of one run."""

    drawn: int = 0
    tested: int = 0
    """Replayed with a record exchanged, and more: see `sordino.runtime_checks`."""
    unused: int = 0
    """Charged, and no optimizer step was made before the next was drawn: a lot's gradient takes the place of the last."""
    untested: int = 0
    """Drawn after the last one that was tested."""
    isolated: int = 0
    """Run record by record, with no way from one to another; nothing is tested."""


CONFIDENCE = 0.95


def smallest_share(tested: int, confidence: float = CONFIDENCE) -> float:
    """Returns the share of lots in which a coupling must show to be found with this probability, from the count of
    tested lots.

    A coupling that shows in a share s of the lots, whichever these are, is missed by t tests at random lots with
    probability (1 − s)^t; so t tests find every s ≥ 1 − (1 − confidence)^(1/t).

    >>> round(smallest_share(8), 2), round(smallest_share(73), 2)
    (0.31, 0.04)
    """
    return 1 - (1 - confidence) ** (1 / tested) if tested else 1.0


def describe_counts(counts: Iterable[LotCounts], unit: str = "record") -> tuple[str, ...]:
    """Returns in words, for the claim, the counts of lots that were drawn, tested or fed no step.

    >>> describe_counts([LotCounts(7200, 73), LotCounts()])
    ('73 of 7,200 lots replayed with a record exchanged',)
    >>> describe_counts([LotCounts(100, isolated=100)])
    ('100 of 100 lots run record by record, by construction: no record can reach another, and nothing was tested',)
    """
    every = list(counts)
    drawn, tested, unused, untested, isolated = (
        sum(count[column] for count in every) for column in range(len(LotCounts._fields))
    )
    lines = []
    # Isolated lots cannot couple records, whatever the model does. That is stronger than a test, so it is said first.
    if isolated:
        lines.append(
            f"{isolated:,} of {drawn:,} lots run {unit} by {unit}, by construction: no {unit} can reach another, and "
            "nothing was tested"
        )
    # Lots that ran record by record need no test and are not counted among those that do.
    if drawn > isolated:
        article = "an" if unit.lower().startswith(("a", "e", "i", "o")) else "a"
        lines.append(f"{tested:,} of {drawn - isolated:,} lots replayed with {article} {unit} exchanged")
    # A coupling that began after the last test would not have been seen; the claim says how many lots that leaves.
    if untested:
        many = f"the last {untested:,} lots were" if untested > 1 else "the last lot was"
        lines.append(f"{many} drawn after the last test")
    # Such lots cost privacy all the same. Many of them hint at a loop that forgets its optimizer step.
    if unused:
        were, them = ("was", "it") if unused == 1 else ("were", "them")
        lines.append(f"{unused:,} of {drawn:,} lots {were} drawn and charged, and no optimizer step used {them}")
    return tuple(lines)


def describe_assumptions(counts: Iterable[LotCounts], unit: str = "record") -> tuple[str, ...]:
    """Returns one line, by the lot counts, about what a claim of a training run takes on the user's word; nothing where
    no lot was drawn.

    >>> describe_assumptions([LotCounts(7200, 73)])[0]
    'your word: initial weights are public, a record is one row of the data, no coupling shows in less than 5 % of lots'
    >>> describe_assumptions([LotCounts(100, isolated=100)])[0]
    'your word: initial weights are public, a record is one row of the data'
    """
    drawn = [count for count in counts if count.drawn]
    if not drawn:
        return ()
    # These facts can be neither tested nor proved from inside the process.
    words = ["initial weights are public"]
    if unit == "record":  # what another unit is, the user has declared, and the claim says it in a line of its own
        words.append("a record is one row of the data")
    # What the tests may have missed depends on how many there were: a coupling in a small share of the lots can slip
    # through.
    tested = [count for count in drawn if count.drawn > count.isolated]
    if tested:
        share = smallest_share(sum(count.tested for count in tested))
        words.append(f"no coupling shows in less than {math.ceil(100 * share)} % of lots")
    return (f"your word: {', '.join(words)}",)
