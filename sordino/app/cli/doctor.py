"""`sordino doctor RUN`: why the accuracy of a run is low, and what to change."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

import tyro

from sordino.app.cli.help_page import HelpPage


@dataclass(frozen=True)
class Command:
    """Say why accuracy is low: signal to noise by layer, learning rate, steps; from what the run has released."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            ("What went wrong, at no cost:", "sordino doctor runs/people"),
            ("Also the share of clipped records, which costs privacy:", "sordino doctor runs/people --ask-clipped 20"),
        ),
    )
    run_dir: Annotated[Path, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory."""
    ask_clipped: float | None = None
    """Release the number of training records whose gradients are clipped, with noise of so many records; the claim of the
    run then contains it."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino doctor`: prints what was found in a run; returns the exit code."""
        from dataclasses import replace

        from sordino.app.runs.doctor import examine_run, release_share_clipped

        examination, claim = examine_run(self.run_dir), None
        # What was asked for takes the place of the offer.
        if self.ask_clipped is not None:
            found, claim = release_share_clipped(self.run_dir, self.ask_clipped)
            others = tuple(one for one in examination.symptoms if one.name != found.name)
            examination = replace(examination, symptoms=(*others, found))
        if self.json:
            print(json.dumps(examination.table() | {"claim": None if claim is None else str(claim)}))
            return 0
        print(examination)
        if claim is not None:
            print(f"\nThe claim of the run is now:\n{claim}")
        return 0
