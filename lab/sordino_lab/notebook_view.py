"""Shows experiments in notebooks: figures, numbers beside the published ones, and findings.

    from sordino_lab.notebook_view import show

    show("wd-fixed-point")

The size is --quick unless another is given, or the environment variable SORDINO_LAB_SIZE names one.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from html import escape

from sordino.app.report.panel_figures import inline_svg
from sordino_lab.catalogue import find_experiment
from sordino_lab.experiment import Experiment, ExperimentSize, Outcome
from sordino_lab.result_store import cache_folder, describe_reduction, withhold_verdicts
from sordino_lab.scoreboard import write_number
from sordino_lab.workbench import Workbench

SIZE_VARIABLE = "SORDINO_LAB_SIZE"


@dataclass(frozen=True)
class ShownExperiment:
    """An experiment that was run, as a notebook displays it."""

    experiment: Experiment
    size: ExperimentSize
    outcome: Outcome

    def _repr_html_(self) -> str:
        """Returns an experiment as a notebook shows it: title, figures, numbers and findings as HTML."""
        one, outcome = self.experiment, self.outcome
        note = describe_reduction(self.size, one)
        # Each drawing has a name of its own, since ids inside SVG must be unique on a page with several.
        figures = "".join(
            f'<div style="max-width:34em">{inline_svg(panel, f"{one.id}-{number}", note)}</div>'
            for number, panel in enumerate(outcome.panels)
        )
        # Texts are escaped: a label such as "λ < 1" would otherwise end up as a broken tag.
        rows = "".join(
            f"<tr><td>{escape(row.what)}</td><td>{write_number(row)}</td><td>{row.published:g}</td>"
            f"<td>{escape(row.where)}</td></tr>"
            for row in outcome.compared
        )
        # A heading above no rows would look as if numbers had been lost.
        numbers = (
            f"<table><tr><th></th><th>ours</th><th>published</th><th>where</th></tr>{rows}</table>" if rows else ""
        )
        findings = "".join(
            f"<li><b>{finding.verdict}</b>: “{escape(finding.says)}” ({finding.line}). {escape(finding.because)}.</li>"
            for finding in outcome.findings
        )
        title = f"{escape(one.title)}{' (reduced)' if note else ''}"
        return f"<h4>{title}</h4><p>{escape(one.shows)}</p>{figures}{numbers}<ul>{findings}</ul>"

    def __repr__(self) -> str:
        """Returns the title and the verdicts, for where there is no notebook."""
        verdicts = "; ".join(f"{finding.verdict}: {finding.says}" for finding in self.outcome.findings)
        return f"{self.experiment.title} ({self.size.value}). {verdicts}"


def show(name: str, size: str | None = None) -> ShownExperiment:
    """Runs an experiment here and returns it for display in a notebook; trainings that are kept are used again.

    Args:
        name: an id of `sordino lab list`, or a file of your own.
        size: tiny, quick, middle or full; verdicts are withheld below the source's own size.

    """
    # The variable lets a test run every notebook in seconds, without a change to its cells.
    chosen = ExperimentSize(size or os.environ.get(SIZE_VARIABLE, ExperimentSize.QUICK.value))
    one = find_experiment(name)
    outcome = one.run(Workbench(chosen, cache_folder()))
    # A verdict on a finding of the source needs the source's size, in a notebook as on the page.
    return ShownExperiment(one, chosen, withhold_verdicts(one, outcome, chosen))
