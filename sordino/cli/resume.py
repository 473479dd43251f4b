"""`sordino resume RUN`: go on with a run that was stopped, killed or failed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

from sordino.cli.outcome import finish, guarded
from sordino.runs.fit import resume
from sordino.runs.view import watching


@dataclass(frozen=True)
class Command:
    """Go on with a run where its last whole checkpoint is."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory."""
    report: bool = True
    """Write report.html and PRIVACY.md at the end."""
    json: bool = False
    """End with one JSON object on the last line."""

    def run(self) -> int:
        """The rest of the run."""
        view = watching(quiet=self.json)
        return guarded("resume", lambda: finish(resume(self.folder, view), report=self.report, as_json=self.json))
