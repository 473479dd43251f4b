"""The page: every result in the order of the papers, in one file that loads nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sordino.app.report.panel_figures import inline_svg
from sordino.app.report.templates import template_environment
from sordino.app.runs import atomic_files
from sordino_lab import store
from sordino_lab.catalogue import experiments
from sordino_lab.experiment import FAILS, HOLDS, SOURCES, UNTESTED, Compared, outcome
from sordino_lab.not_private import entries
from sordino_lab.refresh_results import trains_stand_in
from sordino_lab.scoreboard import Score, score, summary
from sordino_lab.size import ExperimentSize
from sordino_lab.slips import SLIPS

_CLASSES = {HOLDS: "holds", FAILS: "fails", UNTESTED: "untested"}


def write(folder: Path, path: Path) -> Path:
    """The page of all results in a folder, those of the package where it has none."""
    results = store.read(folder)
    if not results:
        raise ValueError("nothing was run yet: `sordino lab run seconds`")
    shown = [_entry(one) for one in results.values()]
    verdicts = Counter(finding.verdict for one in shown for finding in one["findings"])
    scores = score(results)
    values = {
        "entries": shown,
        "summary": summary(scores),
        "scores": [_scored(one) for one in scores],
        "contents": _contents(results),
        "sources": SOURCES,
        "verdicts": {name: (_CLASSES[name], verdicts[name]) for name in _CLASSES},
        "classes": _CLASSES,
        "not_private": entries(),
        "slips": SLIPS,
        "missing": [one for name, one in experiments().items() if name not in results],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    atomic_files.write_file(path, template_environment().get_template("lab.html.jinja").render(values))
    return path


def _contents(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, list[tuple[str, str, bool]]]]:
    """Returns a table of contents: for each source its number, name and (figures, id, whether there is a result)."""
    return [
        (
            number,
            name,
            [(one.figure, one.id, one.id in results) for one in experiments().values() if one.source == number],
        )
        for number, name in SOURCES.items()
    ]


def _scored(one: Score) -> dict[str, str]:
    """Returns a row of the scoreboard for the page."""
    number, ours = one.number, one.ours
    return {
        "id": number.id,
        "what": number.what,
        "where": number.where,
        "published": f"{number.published:g} {number.unit}".strip(),
        "ours": "" if ours is None else _row(ours)["ours"],
        "status": one.status,
        "reason": one.reason,
    }


def _entry(result: dict[str, Any]) -> dict[str, Any]:
    found = outcome(result)
    name = result["id"]
    size = "" if result["size"] == "full" else f" --{result['size']}" if result["size"] == "quick" else ""
    return {
        **{
            key: result[key]
            for key in ("id", "source", "figure", "lines", "title", "shows", "setting", "reduced", "nouns", "terms")
        },
        "size": result["size"],
        "reduced_to": _reduced_to(result),
        "note": result["note"],
        "seconds": f"{result['seconds']:.0f}" if result["seconds"] >= 10 else f"{result['seconds']:.2g}",
        "processor": result["processor"],
        "figures": [Markup(inline_svg(panel, f"{name}-{k}", result["note"])) for k, panel in enumerate(found.panels)],
        "compared": [_row(one) for one in found.compared],
        "findings": found.findings,
        "verdicts": " ".join(sorted({_CLASSES[one.verdict] for one in found.findings})) or "drawing",
        "notes": found.notes,
        "commands": found.commands,
        "command": f"sordino lab run {name}{' --full' if result['size'] == 'full' else size}",
    }


def _reduced_to(result: dict[str, Any]) -> str:
    """Returns what stands behind the title of a result that is smaller than the source's; empty for one that is not."""
    one = experiments()[result["id"]]
    if not store.note(ExperimentSize(result["size"]), one):
        return ""
    stand_in = trains_stand_in(one, result)
    return "reduced, another network than the source's" if stand_in else "reduced"


def _row(one: Compared) -> dict[str, str]:
    ours = "diverged" if one.ours is None else f"{one.ours:.4g}" + (f" ± {one.spread:.2g}" if one.spread else "")
    gap = "" if one.difference is None else f"{one.difference:+.3g}"
    return {
        "what": one.what,
        "ours": ours,
        "published": f"{one.published:g}",
        "gap": gap,
        "unit": one.unit,
        "where": one.where,
    }
