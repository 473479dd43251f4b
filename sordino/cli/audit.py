"""`sordino audit`: is the mechanism the claimed one? Exactly, by replay; by tests; by what an attack can show."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro

FOUND = 1


@dataclass(frozen=True)
class Command:
    """Test a recipe's or a run's mechanism (selftest).

    Exit code 0: nothing was found; 1: something was.
    """

    action: Annotated[Literal["selftest"], tyro.conf.Positional]
    """selftest: sums, noise, sampler and ledger of a recipe or a run, in seconds."""
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory; for selftest also the name of a recipe."""
    error: float = 1e-6
    """selftest: the chance of a false alarm."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Do it; 1 when something was found."""
        from sordino.audit.of_run import pieces_of
        from sordino.audit.run_selftest import selftest
        from sordino.runs import findings

        pieces, dataset = pieces_of(self.what)
        verdict = selftest(pieces, dataset, error=self.error)
        if Path(self.what).is_dir():
            findings.keep(Path(self.what), "selftest", verdict.table())
        print(json.dumps(verdict.table()) if self.json else verdict)
        return 0 if verdict.passed else FOUND
