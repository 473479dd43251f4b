"""The files of a distributed run: the first rank writes them, and the other ranks follow it.

Whatever the first rank reads from the disk (settings, a checkpoint, the mark of the write-ahead ledger) it broadcasts
to the others, so that they need no common folder. The first rank has a mark on its disk before any rank draws below
it.
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
class RunRanks:
    """The ranks of a run; `ranks` is None if the run is a single process, which adds up as one."""

    ranks: Ranks | None = None

    @staticmethod
    def current() -> RunRanks:
        """Returns the ranks of torch's own process group, or a single process if there is none."""
        return RunRanks(ranks_of(None))

    def resuming(self, environment: dict[str, Any]) -> RunRanks:
        """Returns the ranks that resume the files of a distributed run; a single process that resumes one becomes a
        group of one, with the same bits.
        """
        return RunRanks(Ranks()) if self.ranks is None and environment.get(SUMS) == _ON_A_GRID else self

    @property
    def environment(self) -> dict[str, str]:
        """What a replay must have in common with the run besides the machine; never the number of ranks."""
        return {} if self.ranks is None else {SUMS: _ON_A_GRID}

    @property
    def is_first(self) -> bool:
        """Whether this rank writes the files."""
        return self.ranks is None or self.ranks.rank == 0

    def refuse_private_looks(self, settings: Settings) -> None:
        """Refuses options that show private facts of a lot in a distributed run, because each rank holds only its own
        records of it.
        """
        # A rank would show its own part of a lot, which is neither the lot nor public.
        if self.ranks is not None and self.ranks.size > 1:
            for name in ("show_private", "diagnose", "baseline"):
                if getattr(settings.options, name):
                    raise ValueError(f"{name}: each of several ranks has its own records of a lot; leave it out")

    def run_on_first(self, work: Callable[[], T]) -> T:
        """Runs `work`, such as writing files, on the first rank of a distributed run and returns its result on all
        ranks; if it fails there, the others stop too.
        """
        if self.ranks is None or self.ranks.size == 1:
            return work()
        # The other ranks wait for the outcome, which says whether the first one succeeded.
        if not self.is_first:
            succeeded, first_result = self.ranks.broadcast_from_first(None)
            if not succeeded:
                raise StoppedElsewhere("the first rank could not go on; its own message says why")
            received: T = first_result
            return received
        # A failure is broadcast before it is raised, so that no rank waits for ever.
        try:
            result = work()
        except BaseException:
            self.ranks.broadcast_from_first((False, None))
            raise
        self.ranks.broadcast_from_first((True, result))
        return result

    def run_first_before_others(self, work: Callable[[], T]) -> T:
        """Runs `work` on every rank of a distributed run, on the first one before the others, so that they find the
        files it fetched or built.
        """
        # The first rank keeps its own result; the others compute theirs once it is done.
        own_result: list[T] = []
        self.run_on_first(lambda: own_result.append(work()))
        return own_result[0] if own_result else work()

    def wait_for_first(self) -> None:
        """Waits until the first rank has come to this point."""
        self.run_on_first(lambda: None)

    def any_rank(self, wish: bool) -> bool:
        """Returns whether `wish` is true on any rank of a distributed run."""
        if self.ranks is None:
            return wish
        return bool(self.ranks.sum_(torch.tensor([wish], dtype=torch.int64, device=self.ranks.device))[0] > 0)


class FollowerLedger:
    """The write-ahead ledger as the other ranks see it: what the first rank wrote, with nothing on a disk."""

    def __init__(
        self, upto: int = 0, lineage: int = 0, environment: dict[str, Any] | None = None, is_complete: bool = True
    ) -> None:
        self.released_below, self.lineage, self.environment = upto, lineage, dict(environment or {})
        self.is_complete, self.position = is_complete, dict[str, str]()

    def reserve(self, upto: int, environment: dict[str, Any] | None = None) -> None:
        """Records that steps below `released_below` may be released once the first rank has entered them."""
        self.released_below = max(upto, self.released_below)

    def close_at(self, step: int) -> None:
        """Records that the run stopped in good order at a step."""
        self.released_below = step

    def branch(self) -> None:
        """Begins a new lineage, because what follows does not replay what was released before."""
        self.lineage += 1

    def enter_parameters(self, step: int, parameters: str) -> bool:
        """Returns True: the first rank compares the parameters and broadcasts the result."""
        return True

    def __enter__(self) -> FollowerLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing, because no file is held."""
