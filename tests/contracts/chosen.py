"""Which rows of the table a contract is run for, and with which backends."""

from __future__ import annotations

from sordino.per_sample import Backend
from tests.contracts.row import BACKENDS, Variant
from tests.contracts.variants import VARIANTS

NEEDS_A_WEIGHER = ("noise", "divisor", "bound")


def rows(contract: str, *, scripted: bool = True) -> list[Variant]:
    """The rows that a contract is run for; a row that is a sampler cannot be given scripted lots."""
    found = [row for row in VARIANTS if contract not in row.without and not (scripted and row.sampler)]
    if contract in NEEDS_A_WEIGHER:
        found = [row for row in found if row.clipping]
    return [row for row in found if row.unclipped] if contract == "plain" else found


def rows_and_backends(contract: str, *, scripted: bool = True) -> dict[str, tuple[Variant, Backend]]:
    """Every such row with each backend it knows, by a name for the test."""
    return {f"{row.name}-{b}": (row, BACKENDS[b]) for row in rows(contract, scripted=scripted) for b in row.backends}
