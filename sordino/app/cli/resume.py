"""`sordino resume RUN`: continues a run of `sordino train` or `sordino finetune` that was stopped, killed or failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from sordino.app.cli.finetune import find_unfinished, resume_finetuning
from sordino.app.cli.flags import default_of_unset_flag, was_given
from sordino.app.cli.help_page import HelpPage
from sordino.app.cli.training_command import carry_out_training, report_outcome
from sordino.app.runs.directory import CONFIG
from sordino.app.runs.fit import History, resume
from sordino.app.runs.settings import read_config


@dataclass(frozen=True)
class Command:
    """Go on with a run where its last whole checkpoint is."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(("Go on where it stopped:", "sordino resume runs/people-20260101-120000"),),
    )
    folder: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """The run directory; of `sordino finetune`, its --out."""
    report: Annotated[bool, tyro.conf.arg(help_behavior_hint="(default: True)")] = field(
        default=default_of_unset_flag(True)
    )
    """Write report.html, PRIVACY.md and MODEL_CARD.md at the end."""
    json: bool = False
    """End with one JSON object on the last line."""

    def run(self) -> int:
        """Carries out `sordino resume`: continues the run and prints the claim; returns the exit code."""
        unfinished = find_unfinished(Path(self.folder))
        if unfinished is not None:
            return resume_finetuning(unfinished, as_json=self.json)
        # Ranks that do not see the folder are followers, whose process group is that of the CPU.
        config = Path(self.folder) / CONFIG
        device = read_config(config).options.get("device") if config.is_file() else None

        def report(history: History) -> int:
            # A flag wins over what the run was asked for when it began.
            wanted = bool(self.report) if was_given(self, "report") else read_config(history.run / CONFIG).report
            return report_outcome(history, report=wanted, as_json=self.json)

        return carry_out_training(
            "resume", device, quiet=self.json, train=lambda view: resume(self.folder, view), report=report
        )
