"""One call of `draws`: its place among the calls, how far it went, and what its sampler remembers.

Privacy: a pass of a shuffle is known to the ledger by the phase it belongs to. Each iterator has a phase of its own, so
lots drawn from two of them in turn are never taken for batches of one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sordino.sampling.sampler import Draw


@dataclass
class Phase:
    """A number no other call of this run has, and the position after its last draw."""

    number: int
    source: tuple[str, int]  # sampler and size of the dataset
    position: int = 0
    memory: Callable[[], Any] | None = None  # what an informed sampler left behind
    ended: bool = False
    """The call has made all its lots, or was left: nobody draws from it any more."""

    def moved(self, draw: Draw) -> None:
        """One draw further."""
        self.position += 1
        self.memory = draw.memory

    def cover(self, draw: Draw) -> str | None:
        """The name of the draw's pass, if it is of one."""
        return None if draw.cover is None else f"{self.number}/{draw.cover}"
