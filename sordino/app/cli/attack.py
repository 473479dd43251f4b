"""`sordino attack`: runs known attacks on a run; the results are risk reports, never proofs."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Literal

import tyro


@dataclass(frozen=True)
class Command:
    """Attack runs: who was trained on (mia), what a class looks like (inversion), or guess yourself (game)."""

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
        """Carries out the attack or the game; returns the exit code."""
        if not self.runs:
            raise ValueError("no run was given: need a run directory, such as runs/mnist-20250101-120000")
        return {"mia": self._mia, "inversion": self._inversion, "game": self._game}[self.action]()

    def _mia(self) -> int:
        """Runs membership inference on each run, keeps the findings and prints them."""
        from sordino.app.attacks.attack_figures import roc_picture
        from sordino.app.attacks.membership_inference import membership
        from sordino.app.runs import run_findings

        found = [membership(run, self.shadows) for run in self.runs]
        for run, one in zip(self.runs, found, strict=True):
            run_findings.keep(run, "mia", one.table())
        if self.plot is not None:
            roc_picture(found, self.plot)
        print(json.dumps([one.table() for one in found]) if self.json else "\n\n".join(map(str, found)))
        return 0

    def _inversion(self) -> int:
        """Draws an input for every class and prints where the picture is."""
        from sordino.app.attacks.attack_figures import grid_picture
        from sordino.app.attacks.model_inversion import SENTENCE, invert

        rows = [(run.resolve().name, invert(run)) for run in self.runs]
        path = self.plot or self.runs[0] / "inversion.png"
        grid_picture(rows, path)
        print(json.dumps({"picture": str(path), "note": SENTENCE}) if self.json else f"{path}\n{SENTENCE}")
        return 0

    def _game(self) -> int:
        """Plays the membership game here, or writes a page to play it on."""
        from sordino.app.attacks.membership_game import new_game, page, play
        from sordino.app.runs import atomic_files

        game = new_game(self.runs[0], self.rounds)
        if self.page is not None:
            atomic_files.write(self.page, page(game))
            print(json.dumps({"page": str(self.page)}) if self.json else self.page)
            return 0
        play(game, input, print)
        return 0
