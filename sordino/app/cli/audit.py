"""`sordino audit`: checks that the mechanism is the claimed one, by tests, replay and attack."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

import tyro

from sordino.app.cli.help_page import HelpPage

if TYPE_CHECKING:
    from sordino.app.audits.one_run_audit import OneRunAudit
    from sordino.app.audits.replay_audit import ReplayResult
    from sordino.auditing.verdict import Verdict

FOUND = 1


@dataclass(frozen=True)
class Command:
    """Test a mechanism (selftest), run recorded steps again (replay), train once with canaries (run).

    Exit code 0: nothing was found; 1: something was.
    """

    help_page: ClassVar[HelpPage] = HelpPage(
        examples=(
            ("Test sums, noise, sampler and ledger of a recipe, in seconds:", "sordino audit selftest mnist"),
            (
                "Take recorded steps apart, of a run that was trained with --keep-key:",
                "sordino audit replay runs/people",
            ),
            ("Train a copy with canaries and measure a lower bound on ε:", "sordino audit run digits --epsilon 1"),
        ),
        groups={
            "Of selftest": ("error",),
            "Of replay": ("steps",),
            "Of run": ("canaries", "kinds", "epsilon", "records", "rate", "training_steps"),
            "Output": ("json",),
        },
    )
    action: Annotated[Literal["selftest", "replay", "run"], tyro.conf.Positional]
    """selftest: sums, noise, sampler and ledger of a recipe or a run, in seconds. replay: recorded steps, bit by bit.
    run: a copy is trained once with canaries, and a lower bound on ε measured beside the claim."""
    what: Annotated[str, tyro.conf.Positional, tyro.conf.arg(metavar="RUN")]
    """A run directory; for selftest and run also the name of a recipe."""
    steps: int = 20
    """replay: how many steps are taken apart, chosen by a fresh coin."""
    canaries: int = 1000
    """run: how many of each kind."""
    kinds: tuple[Literal["gradient", "noise", "mislabelled"], ...] = ("gradient", "noise", "mislabelled")
    """run: kinds of canaries."""
    epsilon: float | None = None
    """run: of the copy, in place of the recipe's; one run can contradict small claims only, so audit at about 1."""
    records: int | None = None
    """run: train the copy on the first so many records."""
    rate: float | None = None
    """run: the copy's Poisson rate."""
    training_steps: int | None = None
    """run: how many steps the copy is trained for."""
    error: float = 1e-6
    """selftest: the chance of a false alarm."""
    device: str | None = None
    """selftest, run: where to compute: auto, cpu, or a device such as cuda:0; as the run did without it, which is what
    replay always does."""
    json: bool = False
    """Print one JSON object."""

    def run(self) -> int:
        """Carries out `sordino audit`: a selftest, a replay or a run with canaries; returns 1 if something
        was found.
        """
        return {"selftest": self._run_selftest, "replay": self._run_replay, "run": self._run_one_run_audit}[
            self.action
        ]()

    def _run_selftest(self) -> int:
        """Carries out `sordino audit selftest`: tests sums, noise, sampler and ledger of a recipe or a run."""
        from sordino.app.audits.audited_run import load_pieces
        from sordino.auditing.selftest import selftest

        pieces, dataset = load_pieces(self.what, self.device)
        return self._report_verdict(selftest(pieces, dataset, error=self.error))

    def _run_replay(self) -> int:
        """Carries out `sordino audit replay`: runs recorded steps again and compares them with the ledger."""
        from sordino.app.audits.replay_audit import audit_by_replay

        if self.device is not None:
            raise ValueError("--device: a replay computes where the run did, or its bits would be others; leave it out")
        return self._report_verdict(audit_by_replay(self.what, self.steps))

    def _run_one_run_audit(self) -> int:
        """Carries out `sordino audit run`: trains a copy with canaries and measures a lower bound on ε."""
        from sordino.app.audits.audited_run import load_job
        from sordino.app.audits.one_run_audit import audit_one_run

        # Only what was given replaces the recipe's own.
        given = {"epsilon": self.epsilon, "records": self.records, "rate": self.rate, "steps": self.training_steps}
        job = load_job(self.what, {name: value for name, value in given.items() if value is not None}, self.device)
        return self._report_verdict(audit_one_run(job, self.canaries, self.kinds))

    def _report_verdict(self, verdict: Verdict | ReplayResult | OneRunAudit) -> int:
        """Prints the verdict of `sordino audit`, keeps it in the run directory, and writes the report again if there is
        one.
        """
        from sordino.app.runs.directory import keep_finding

        # A finding about a run is kept with it, and its report then shows it.
        folder = Path(self.what)
        if folder.is_dir():
            keep_finding(folder, self.action, verdict.table())
            if (folder / "report.html").exists():
                from sordino.app.report import write

                write(folder)
        print(json.dumps(verdict.table()) if self.json else verdict)
        return 0 if verdict.passed else FOUND
