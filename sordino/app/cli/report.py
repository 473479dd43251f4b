"""`sordino report`: writes a run's report.html, PRIVACY.md and model card again."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from sordino.app.cli.help_page import HelpPage


@dataclass(frozen=True)
class Command:
    """Write report.html, PRIVACY.md and MODEL_CARD.md of a run.

    What only you know can be stated, and is kept for the next time.
    """

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            (
                "Write it again, with what only you know:",
                'sordino report runs/people --unit "all visits of a patient" --release "the model, to everyone"',
            ),
        ),
    )
    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory."""
    unit: str | None = None
    """State what one record stands for: "a picture", "all visits of a patient"."""
    tuning: str | None = None
    """State how hyper-parameters were chosen, and whether private data was looked at for it."""
    release: str | None = None
    """State what is given out, and to whom."""
    verify: str | None = None
    """State how others can check: open code, an audit."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino report`: writes report, PRIVACY.md and model card, and prints where they are; returns the
        exit code.
        """
        from sordino.app.report import Statement, write
        from sordino.app.report.model_card import CARD

        written = write(self.run_dir, Statement(self.unit, self.tuning, self.release, self.verify))
        # All three files are named, since the report alone does not show that the others were written beside it.
        paths = {
            "report": str(written),
            "privacy": str(written.with_name("PRIVACY.md")),
            "card": str(written.with_name(CARD)),
        }
        titles = {"report": "report", "privacy": "claim in words", "card": "model card"}
        lines = (f"{titles[name]:<14} {path}" for name, path in paths.items())
        print(json.dumps(paths) if self.json else "\n".join(lines))
        return 0
