"""The phase of one call of `draws`: its number, its position, and what its sampler remembers.

Privacy: a pass of a shuffle is known to the ledger by the phase it belongs to. Each iterator has a phase of its own, so
lots drawn from two of them in turn are never taken for batches of one pass.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from sordino.sampling.sampler import Draw


@dataclass
class DrawPhase:
    """The state of one call of `draws`: a number that no other call of the run has, and its position."""

    number: int
    source: tuple[str, int]  # sampler and size of the dataset
    position: int = 0
    memory: Callable[[], Any] | None = None  # what an informed sampler left behind
    ended: bool = False
    """Whether the call has made all its lots, or was left: nobody draws from it any more."""

    def advance(self, draw: Draw) -> None:
        """Advances the position by one draw and keeps what the sampler remembers after it."""
        self.position += 1
        self.memory = draw.memory

    def pass_name(self, draw: Draw) -> str | None:
        """Returns the name of the pass over the data that the draw belongs to; None if it belongs to none."""
        return None if draw.cover is None else f"{self.number}/{draw.cover}"
