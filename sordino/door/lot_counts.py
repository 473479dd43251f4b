"""What became of the lots that were drawn: how many had the standing test, how many fed no optimizer step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class LotCounts(NamedTuple):
    """Of one run."""

    drawn: int = 0
    tested: int = 0
    """Replayed with a record exchanged, and more: see `sordino.standing`."""
    unused: int = 0
    """Charged, and no optimizer step was made before the next was drawn: a lot's gradient takes the place of the last."""
    untested: int = 0
    """Drawn after the last one that was tested."""


def said(counts: Iterable[LotCounts], unit: str = "record") -> tuple[str, ...]:
    """In words, for the claim.

    >>> said([LotCounts(7200, 73), LotCounts()])
    ('73 of 7,200 lots replayed with a record exchanged',)
    """
    every = list(counts)
    drawn, tested, unused, untested = (
        sum(count[column] for count in every) for column in range(len(LotCounts._fields))
    )
    if not drawn:
        return ()
    article = "an" if unit.lower().startswith(("a", "e", "i", "o")) else "a"
    lines = [f"{tested:,} of {drawn:,} lots replayed with {article} {unit} exchanged"]
    if untested:
        lines.append(
            f"the last {untested:,} of these lots came after the last test"
            if untested > 1
            else "the last lot was not tested"
        )
    if unused:
        were, them = ("was", "it") if unused == 1 else ("were", "them")
        lines.append(f"{unused:,} of {drawn:,} lots {were} drawn and charged, and no optimizer step used {them}")
    return tuple(lines)
