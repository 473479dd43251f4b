"""`sordino attack`: runs known attacks on a run; the results are risk reports, never proofs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

import tyro

from sordino.app.cli.help_page import HelpPage


@dataclass(frozen=True)
class Command:
    """Attack runs: who was trained on (mia), what a class looks like (inversion), or guess yourself (game)."""

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            ("Membership inference against a run, with a picture:", "sordino attack mia runs/people --plot roc.png"),
            ("Guess yourself:", "sordino attack game runs/people"),
        ),
    )
    action: Annotated[Literal["mia", "inversion", "game"], tyro.conf.Positional]
    """mia: loss threshold, LiRA and RMIA. inversion: an input for every class. game: guess who was trained on."""
    runs: Annotated[tuple[Path, ...], tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """One run directory or more: several come on one picture."""
    shadows: int = 64
    """mia: shadow heads on frozen features; 0: the loss threshold alone."""
    plot: Path | None = None
    """mia, inversion: write a picture there (PNG)."""
    rounds: int = 12
    """game: how many."""
    page: Path | None = None
    """game: write an HTML page to play on, instead of playing here."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino attack`: an attack on runs, or the game; returns the exit code."""
        if not self.runs:
            raise ValueError("no run was given: need a run directory, such as runs/mnist-20250101-120000")
        return {"mia": self._run_membership_inference, "inversion": self._run_inversion, "game": self._run_game}[
            self.action
        ]()

    def _run_membership_inference(self) -> int:
        """Carries out `sordino attack mia`: runs membership inference on each run, keeps the findings and
        prints them.
        """
        from sordino.app.attacks.attack_figures import draw_roc_curves
        from sordino.app.attacks.membership_inference import attack_membership
        from sordino.app.runs.directory import keep_finding

        # Every run is attacked alike; one figure shows them all.
        memberships = [attack_membership(run, self.shadows) for run in self.runs]
        for run, one in zip(self.runs, memberships, strict=True):
            keep_finding(run, "mia", one.table())
        if self.plot is not None:
            draw_roc_curves(memberships, self.plot)
        print(json.dumps([one.table() for one in memberships]) if self.json else "\n\n".join(map(str, memberships)))
        return 0

    def _run_inversion(self) -> int:
        """Carries out `sordino attack inversion`: draws an input for every class and prints where the picture is."""
        from sordino.app.attacks.attack_figures import draw_inverted_classes
        from sordino.app.attacks.model_inversion import SENTENCE, invert_classes

        rows = [(run.resolve().name, invert_classes(run)) for run in self.runs]
        path = self.plot or self.runs[0] / "inversion.png"
        draw_inverted_classes(rows, path)
        print(json.dumps({"picture": str(path), "note": SENTENCE}) if self.json else f"{path}\n{SENTENCE}")
        return 0

    def _run_game(self) -> int:
        """Carries out `sordino attack game`: plays the membership game here, or writes a page to play it on."""
        from sordino.app import atomic_files
        from sordino.app.attacks.membership_game import deal_game, play_in_terminal, render_page

        # A page can be played elsewhere; without one the game is played in the terminal.
        game = deal_game(self.runs[0], self.rounds)
        if self.page is not None:
            atomic_files.write_file(self.page, render_page(game))
            print(json.dumps({"page": str(self.page)}) if self.json else self.page)
            return 0
        play_in_terminal(game, input, print)
        return 0
