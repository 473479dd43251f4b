"""Writes report.html, PRIVACY.md and MODEL_CARD.md from a run directory; each is a complete file or absent.

**Privacy:** a report holds released and public values only. Without a guarantee it holds no ε, not even one that was
hoped for, and says why.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sordino.accounting import meaning
from sordino.app import atomic_files
from sordino.app.report import statement, svg_figures
from sordino.app.report.evidence import read
from sordino.app.report.facts import ReportFacts, collect_facts
from sordino.app.report.model_card import CARD, describe_card
from sordino.app.report.statement import Statement
from sordino.app.report.templates import template_environment
from sordino.app.runs.encoded_records import ENCODER
from sordino.version import __version__

REPORT, STATEMENT = "report.html", "PRIVACY.md"


def write(run_dir: str | Path, stated: Statement | None = None) -> Path:
    """Writes report.html, PRIVACY.md and MODEL_CARD.md into the run directory, keeps new statements beside them, and
    returns the report's path.

    Args:
        run_dir: a run directory.
        stated: answers that only you know.

    Returns:
        Where `report.html` is; `PRIVACY.md` and the model card, `MODEL_CARD.md`, are beside it.

    Privacy:
        Made of released values and the claim alone.

    Examples:
        >>> import tempfile
        >>> import sordino as sd
        >>> from sordino.app import report
        >>> history = sd.fit("spiral", epsilon=2.0, steps=20, records=500, out=tempfile.mkdtemp())
        >>> report.write(history.run).name
        'report.html'

    """
    # New statements are merged with what was stated before.
    evidence = read(run_dir)
    full_statement = statement.load_statement(evidence.folder)
    if stated is not None and stated != Statement():
        full_statement = full_statement.with_more(stated)
        statement.save_statement(evidence.folder, full_statement)
    # The templates get plain values only.
    report_facts = collect_facts(evidence, full_statement)
    values = {
        **vars(report_facts),
        "version": evidence.get("versions", "sordino") or __version__,
        "started": str(evidence.get("resolved", "started") or "")[:16].replace("T", " "),
        "figures": _draw_figures(report_facts),
        "card": describe_card(evidence, _read_encoder_table(evidence.folder)),
        "hits": [(meaning.percent(a), meaning.percent(b)) for a, b in report_facts.privacy.attack.hits]
        if report_facts.privacy
        else [],
    }
    # The page, the statement and the model card say the same facts in three forms.
    templates = template_environment()
    atomic_files.write_file(evidence.folder / REPORT, templates.get_template("report.html.jinja").render(values))
    atomic_files.write_file(evidence.folder / STATEMENT, templates.get_template("privacy.md.jinja").render(values))
    atomic_files.write_file(evidence.folder / CARD, templates.get_template("model_card.md.jinja").render(values))
    return evidence.folder / REPORT


def _read_encoder_table(folder: Path) -> dict[str, Any]:
    """Reads the encoder.json of a run before report and model card are written; empty if the run has none or it cannot
    be read.
    """
    try:
        table = json.loads((folder / ENCODER).read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}


def _draw_figures(report_facts: ReportFacts) -> list[tuple[Markup, str]]:
    """Draws the figures that are written into report.html, with their captions; they hold nothing of the user's but
    numbers.
    """
    rows, drawn = report_facts.evidence.rows, []
    name = svg_figures.accuracies_or_losses(rows)[2]
    # Without a guarantee no ε is drawn, even if the metrics hold one.
    if report_facts.privacy is None:
        if rows:
            bare = [vars(row) | {"epsilon": None} for row in rows]
            drawn.append((svg_figures.draw_over_steps([type(rows[0])(**row) for row in bare]), f"{name} in training"))
        return [(Markup(svg), caption) for svg, caption in drawn]
    if rows:
        drawn.append((svg_figures.draw_over_steps(rows), f"{name}, and the privacy spent on the way"))
        if all(row.epsilon is not None for row in rows):
            drawn.append((svg_figures.draw_accuracy_against_epsilon(rows), "What the privacy spent has bought"))
    # The trade-off curve is the claim itself, drawn.
    caption = "No attack can tell better whether a record was used"
    drawn.append((svg_figures.draw_attack(report_facts.privacy.curve), caption))
    return [(Markup(svg), caption) for svg, caption in drawn]
