"""`sordino audit`: is the mechanism the claimed one? Exactly, by replay; by tests; by what an attack can show."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

if TYPE_CHECKING:
    from sordino.audit.replay import Replayed
    from sordino.audit.verdict import Verdict

FOUND = 1


@dataclass(frozen=True)
class Command:
    """Test a mechanism (selftest) or run recorded steps again and take them apart (replay).

    Exit code 0: nothing was found; 1: something was.
    """

    action: Annotated[Literal["selftest", "replay"], tyro.conf.Positional]
    """selftest: sums, noise, sampler and ledger of a recipe or a run, in seconds. replay: recorded steps, bit by bit."""
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory; for selftest also the name of a recipe."""
    steps: int = 20
    """replay: how many steps are taken apart, chosen by a fresh coin."""
    error: float = 1e-6
    """selftest: the chance of a false alarm."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Do it; 1 when something was found."""
        return {"selftest": self._selftest, "replay": self._replay}[self.action]()

    def _selftest(self) -> int:
        from sordino.audit.of_run import pieces_of
        from sordino.audit.run_selftest import selftest

        pieces, dataset = pieces_of(self.what)
        return self._said(selftest(pieces, dataset, error=self.error))

    def _replay(self) -> int:
        from sordino.audit.replay import replay

        return self._said(replay(self.what, self.steps))

    def _said(self, verdict: Verdict | Replayed) -> int:
        from sordino.runs import findings

        folder = Path(self.what)
        if folder.is_dir():
            findings.keep(folder, self.action, verdict.table())
            if (folder / "report.html").exists():
                from sordino.report import write

                write(folder)
        print(json.dumps(verdict.table()) if self.json else verdict)
        return 0 if verdict.passed else FOUND
