"""A run of several ranks: the first writes the files and is watched, the others do the same and write nothing.

What the first one reads from the disk (settings, a checkpoint, the mark of the write-ahead ledger) it tells the others, so
they need no folder in common. A mark is on the disk of the first before anyone draws below it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar

import torch

from sordino.app.runs.settings import Settings
from sordino.distributed.process_group import Ranks, ranks_of
from sordino.distributed.shared_lot import StoppedElsewhere

T = TypeVar("T")

SUMS = "sums"
_ON_A_GRID = "whole numbers"


@dataclass(frozen=True)
class Crew:
    """The ranks of a run; None: it is one process, and adds up as one."""

    ranks: Ranks | None = None

    @staticmethod
    def here() -> Crew:
        """Those of torch's own group, if there is one."""
        return Crew(ranks_of(None))

    def going_on(self, environment: dict[str, Any]) -> Crew:
        """The same; one process that goes on with a run of ranks is a group of one, and has their bits."""
        return Crew(Ranks()) if self.ranks is None and environment.get(SUMS) == _ON_A_GRID else self

    @property
    def environment(self) -> dict[str, str]:
        """What a replay must have in common with the run, beside the machine: never the number of ranks."""
        return {} if self.ranks is None else {SUMS: _ON_A_GRID}

    @property
    def first(self) -> bool:
        """Does this one write the files?"""
        return self.ranks is None or self.ranks.rank == 0

    def refuse(self, settings: Settings) -> None:
        """Refuse looks at the records of a lot, of which each rank has its own."""
        if self.ranks is not None and self.ranks.size > 1:
            for name in ("show_private", "diagnose"):
                if getattr(settings.options, name):
                    raise ValueError(f"{name}: each of several ranks has its own records of a lot; leave it out")

    def told(self, work: Callable[[], T]) -> T:
        """What the first makes, as all then have it; where it fails the others stop."""
        if self.ranks is None or self.ranks.size == 1:
            return work()
        if not self.first:
            fine, made = self.ranks.of_first(None)
            if not fine:
                raise StoppedElsewhere("the first rank could not go on; its own message says why")
            found: T = made
            return found
        try:
            result = work()
        except BaseException:
            self.ranks.of_first((False, None))
            raise
        self.ranks.of_first((True, result))
        return result

    def after_first(self, work: Callable[[], T]) -> T:
        """Work that each does for itself, the first one first: what it fetches or builds is there for the others."""
        mine: list[T] = []
        self.told(lambda: mine.append(work()))
        return mine[0] if mine else work()

    def wait(self) -> None:
        """Until the first has come here."""
        self.told(lambda: None)

    def any(self, wish: bool) -> bool:
        """Does any of them?"""
        if self.ranks is None:
            return wish
        return bool(self.ranks.sum_(torch.tensor([wish], dtype=torch.int64, device=self.ranks.device))[0] > 0)


class Elsewhere:
    """The write-ahead ledger as the other ranks have it: what the first one wrote, and nothing on a disk."""

    def __init__(
        self, upto: int = 0, lineage: int = 0, environment: dict[str, Any] | None = None, is_complete: bool = True
    ) -> None:
        self.upto, self.lineage, self.environment = upto, lineage, dict(environment or {})
        self.is_complete, self.position = is_complete, dict[str, str]()

    def reserve(self, upto: int, environment: dict[str, Any] | None = None) -> None:
        """Steps below `upto` may be released once the first has entered them."""
        self.upto = max(upto, self.upto)

    def close_at(self, step: int) -> None:
        """The run stopped in good order."""
        self.upto = step

    def branch(self) -> None:
        """What follows is no replay of what was."""
        self.lineage += 1

    def note(self, step: int, parameters: str) -> bool:
        """The first one compares, and tells."""
        return True

    def __enter__(self) -> Elsewhere:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Nothing is held."""
