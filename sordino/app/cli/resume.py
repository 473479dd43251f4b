"""`sordino resume RUN`: continues a run that was stopped, killed or failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from sordino.app.cli.dataclass_flags import default_of_unset_flag, was_given
from sordino.app.cli.help_page import HelpPage
from sordino.app.cli.launcher import join_process_group
from sordino.app.cli.training_outcome import exit_code_of, report_outcome, run_and_report_failures
from sordino.app.runs.directory import CONFIG
from sordino.app.runs.fit import resume
from sordino.app.runs.progress_view import Silent, choose_view
from sordino.app.runs.settings import read_config


@dataclass(frozen=True)
class Command:
    """Go on with a run where its last whole checkpoint is."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(("Go on where it stopped:", "sordino resume runs/people-20260101-120000"),),
    )
    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory."""
    report: Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: True)")] = field(
        default=default_of_unset_flag(True)
    )
    """Write report.html, PRIVACY.md and MODEL_CARD.md at the end."""
    json: bool = False
    """End with one JSON object on the last line."""

    def run(self) -> int:
        """Continues the run; returns the exit code."""
        # Ranks that do not see the folder are followers, whose process group is that of the CPU.
        config = Path(self.folder) / CONFIG
        device = read_config(config).options.get("device") if config.is_file() else None
        with join_process_group(device) as first:
            return self._continue_run(is_first_rank=first)

    def _continue_run(self, *, is_first_rank: bool) -> int:
        """Carries out `sordino resume` on this rank: continues the run; only the first rank shows progress
        and prints.
        """
        # One rank speaks for all.
        view = choose_view(quiet=self.json) if is_first_rank else Silent()

        def resume_and_report() -> int:
            """Continues the run for `sordino resume` and reports its result."""
            history = resume(self.folder, view)
            if not is_first_rank:
                return exit_code_of(history)
            report = bool(self.report) if was_given(self, "report") else read_config(history.run / CONFIG).report
            return report_outcome(history, report=report, as_json=self.json)

        return run_and_report_failures("resume", resume_and_report)
