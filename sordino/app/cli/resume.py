"""`sordino resume RUN`: continues a run that was stopped, killed or failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated

import tyro

from sordino.app.cli.dataclass_flags import unsaid, was_given
from sordino.app.cli.launcher import launched
from sordino.app.cli.training_outcome import finish, followed, guarded
from sordino.app.runs.directory import CONFIG
from sordino.app.runs.fit import resume
from sordino.app.runs.progress_view import Silent, watching
from sordino.app.runs.settings import read


@dataclass(frozen=True)
class Command:
    """Go on with a run where its last whole checkpoint is."""

    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory."""
    report: Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: True)")] = field(default=unsaid(True))
    """Write report.html and PRIVACY.md at the end."""
    json: bool = False
    """End with one JSON object on the last line."""

    def run(self) -> int:
        """Continues the run; returns the exit code."""
        with launched() as first:
            return self._went_on(first=first)

    def _went_on(self, *, first: bool) -> int:
        """Continues the run on this rank; only the first rank shows progress and prints."""
        view = watching(quiet=self.json) if first else Silent()

        def rest() -> int:
            """Continues the run and reports its result."""
            history = resume(self.folder, view)
            if not first:
                return followed(history)
            report = bool(self.report) if was_given(self, "report") else read(history.run / CONFIG).report
            return finish(history, report=report, as_json=self.json)

        return guarded("resume", rest)
