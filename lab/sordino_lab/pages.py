"""Pages of the lab: the HTML page with every result, and pages of docs: lab.md, lab_judgements.md and called_private.md.

The HTML page is one file that loads nothing: every result in the order of the papers, with the scoreboard at its top.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from sordino.app import atomic_files
from sordino.app.report.panel_figures import inline_svg
from sordino.app.report.svg_figures import share_styles
from sordino.app.report.templates import template_environment
from sordino_lab import result_store
from sordino_lab.catalogue import experiments
from sordino_lab.experiment import (
    ALL_SOURCES,
    FAILS,
    HOLDS,
    OWN,
    SOURCES,
    UNTESTED,
    Compared,
    ExperimentSize,
    fact_names,
    read_outcome,
)
from sordino_lab.judgements import list_judgements
from sordino_lab.scoreboard import MET, MISSED, NOT_RUN, Score, score_results, write_summary, write_table
from sordino_lab.source_errors import SLIPS, list_not_private

INDEX_BEGIN, INDEX_END = "<!-- index: written by sordino_lab.pages -->", "<!-- end of the index -->"
RESULTS_BEGIN, RESULTS_END = "<!-- results: written by sordino_lab.pages -->", "<!-- end of the results -->"
_MOST_NUMBERS = 4
"""Numbers of an id that the table of results has; `sordino lab check` has all."""
DOCS = Path(__file__).resolve().parents[2] / "docs"
"""The pages of the documentation, in a clone of the repository."""
_READ_ON = {
    "lab.md": "how to run the lab",
    "lab_judgements.md": "what every verdict tests",
    "called_private.md": "methods without a guarantee, with the numbers",
    "lecture.md": "the lecture step by step",
    "how_to/own_variants.md": "try a variant of your own",
}
"""Pages of the documentation that the top of the HTML page leads to."""
_CLASSES = {HOLDS: "holds", FAILS: "fails", UNTESTED: "untested"}
"""CSS classes of the verdicts."""
_STATUSES = (MISSED, MET, NOT_RUN)
"""What may have become of a published number; misses come first, because they ask for a reason."""


# ---------------------------------------------------------------------------------------------------------------------
# The HTML page
# ---------------------------------------------------------------------------------------------------------------------


def write_html(folder: Path, path: Path) -> Path:
    """Writes the HTML page of all results of the lab in a folder, and of those of the package where the folder has
    none.

    Raises:
        ValueError: there is no result at all.

    """
    # Verdicts and scores are counted over all results, and shown above them.
    results = result_store.read_results(folder)
    if not results:
        raise ValueError("nothing was run yet: `sordino lab run seconds`")
    # Verdicts are counted from the entries that are shown, so that the sum on top agrees with the list below it.
    entries = [_describe_result(one) for one in results.values()]
    verdicts = Counter(finding.verdict for one in entries for finding in one["findings"])
    scores = score_results(results)
    contents = _list_contents(results)
    pages = _find_reference_pages(path.parent)
    for one in entries:
        one["nouns"] = [(noun, pages.get(noun, "")) for noun in one["nouns"]]
    values = {
        "entries": entries,
        "summary": write_summary(scores),
        "scores": {status: [_describe_score(one) for one in scores if one.status == status] for status in _STATUSES},
        "contents": contents,
        # A button has room for the authors and no more.
        "sources": {number: (name, re.split("[,:]", name)[0]) for number, name, _ in contents},
        "verdicts": {name: (_CLASSES[name], verdicts[name]) for name in _CLASSES},
        "classes": _CLASSES,
        "read_on": _link_docs(path.parent),
        "not_private": list_not_private(),
        "slips": SLIPS,
        # Figures that were not run are named too, or the page would look complete when it is not.
        "missing": [one for name, one in experiments().items() if name not in results],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    page = template_environment().get_template("lab.html.jinja").render(values)
    atomic_files.write_file(path, share_styles(page))
    return path


def _list_contents(results: Mapping[str, Mapping[str, Any]]) -> list[tuple[str, str, list[dict[str, str]]]]:
    """Returns the table of contents of the lab's HTML page: for each source its number, its name and its figures."""
    contents = [
        (
            number,
            name,
            [
                _describe_entry(one.figure, one.id, one.title, results)
                for one in experiments().values()
                if one.source == number
            ],
        )
        for number, name in ALL_SOURCES.items()
    ]
    # Experiments of a user's own are named after the papers, where there are any.
    own = [
        _describe_entry("own", name, str(one["title"]), results)
        for name, one in results.items()
        if one["source"] == OWN
    ]
    return [*contents, (OWN, "Experiments of your own", own)] if own else contents


def _describe_entry(figure: str, name: str, title: str, results: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Returns an entry of the table of contents of the lab's HTML page: a figure, and what is not there of it."""
    lack = describe_lack(results[name]) if name in results else "not run here yet"
    return {"figure": figure, "id": name, "title": title, "lack": lack}


def _link_docs(folder: Path) -> list[tuple[str, str]]:
    """Returns what the top of the HTML page links to, as (address, words): pages of the documentation beside the code.

    An installed package has no documentation beside it; then there are no links.
    """
    return [(_find_address(DOCS / name, folder), words) for name, words in _READ_ON.items() if (DOCS / name).is_file()]


def _find_reference_pages(folder: Path) -> dict[str, str]:
    """Returns the address of the reference page of every public name that has one, seen from the folder of the page."""
    found: dict[str, str] = {}
    for page in sorted(DOCS.glob("reference/**/*.md")):
        text = page.read_text("utf-8")
        # A page names an object by its whole path, or a module and which of its members it shows.
        names = [one.rpartition(".")[2] for one in re.findall(r"^::: (\S+)", text, re.MULTILINE)]
        members = [one for row in re.findall(r"members: \[([^]]*)\]", text) for one in row.split(", ")]
        for name in (*names, *members):
            found.setdefault(name, _find_address(page, folder))
    return found


def _find_address(page: Path, folder: Path) -> str:
    """Returns the address of a page of the documentation, seen from a folder."""
    return Path(os.path.relpath(page, folder.resolve())).as_posix()


def _describe_score(one: Score) -> dict[str, str]:
    """Returns a row of the scoreboard for the lab's HTML page."""
    number, ours = one.number, one.ours
    return {
        "id": number.id,
        "what": number.what,
        "where": number.where,
        "published": f"{number.published:g} {number.unit}".strip(),
        "ours": "" if ours is None else _describe_comparison(ours)["ours"],
        "status": one.status,
        "reason": one.reason,
    }


def _describe_result(result: dict[str, Any]) -> dict[str, Any]:
    """Returns what the lab's HTML page shows of a result: facts, figures, numbers, findings, notes and commands."""
    # The command beside a result repeats it at the size at which it was made.
    outcome = read_outcome(result)
    name = result["id"]
    flag = {"full": " --full", "quick": " --quick"}.get(result["size"], "")
    facts = {key: result[key] for key in (*fact_names(), "size", "note", "processor")}
    return {
        **facts,
        "lack": describe_lack(result),
        "seconds": f"{result['seconds']:.0f}" if result["seconds"] >= 10 else f"{result['seconds']:.2g}",
        # The note stands over the panels, so that it need not be repeated under each of them.
        "figures": [Markup(inline_svg(panel, f"{name}-{k}")) for k, panel in enumerate(outcome.panels)],
        "compared": [_describe_comparison(one) for one in outcome.compared],
        "findings": outcome.findings,
        "verdicts": " ".join(sorted({_CLASSES[one.verdict] for one in outcome.findings})) or "drawing",
        "notes": outcome.notes,
        "commands": outcome.commands,
        "command": f"sordino lab run {name}{flag}",
    }


def describe_lack(result: Mapping[str, Any]) -> str:
    """Returns what stands behind the title of a result on the lab's page if the result is smaller than the source's or
    lacks curves of it; else nothing.
    """
    # The word comes from the size of the result, not from what its note says. An experiment of a user's own is not in
    # the catalogue, so its note has to do.
    one = experiments().get(result["id"])
    if one is not None and result_store.describe_reduction(ExperimentSize(result["size"]), one):
        return result_store.REDUCED
    return result_store.describe_lack(result)


def _describe_comparison(one: Compared) -> dict[str, str]:
    """Returns a number of ours beside the published one, in words for a table of the lab's page."""
    # Mean and spread with so many digits as the published numbers have.
    ours = "diverged" if one.ours is None else f"{one.ours:.4g}" + (f" ± {one.spread:.2g}" if one.spread else "")
    gap = "" if one.difference is None else f"{one.difference:+.2g}".replace("-", "−")
    return {
        "what": one.what,
        "ours": ours,
        "published": f"{one.published:g}",
        "gap": gap,
        "unit": one.unit,
        "where": one.where,
    }


# ---------------------------------------------------------------------------------------------------------------------
# The documents
# ---------------------------------------------------------------------------------------------------------------------


def write_documents(folder: Path) -> None:
    """Writes the lab's pages in a folder of documents: the tables of lab.md, lab_judgements.md and called_private.md."""
    # Only what stands between the marks is replaced; the rest of the page is written by people.
    page = folder / "lab.md"
    text = page.read_text("utf-8")
    for begin, made, end in (
        (INDEX_BEGIN, write_index(), INDEX_END),
        (RESULTS_BEGIN, write_results_table(), RESULTS_END),
    ):
        text = text[: text.index(begin)] + made + text[text.index(end) + len(end) :]
    atomic_files.write_file(page, text)
    atomic_files.write_file(folder / "called_private.md", write_called_private())
    atomic_files.write_file(folder / "lab_judgements.md", write_judgements())


def write_index() -> str:
    """Returns the index on the lab's page, a table for each source: figure, title, command, names of sordino, and
    German terms of source 001.
    """
    parts = []
    for number, name in ALL_SOURCES.items():
        # A source without figures of its own keeps its heading, so that the index shows every source.
        rows = [
            f"| {_cell(one.figure)} | {_cell(one.title)} | `sordino lab run {one.id}` | "
            f"{', '.join(f'`{noun}`' for noun in one.nouns)} | {_cell(one.terms)} |"
            for one in experiments().values()
            if one.source == number
        ]
        parts.append(
            f"### Source {number}: {name}\n\n| figure | what | command | made of | in the source |\n|---|---|---|---|---|\n"
            + "\n".join(rows)
        )
    return f"{INDEX_BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{INDEX_END}"


def write_results_table() -> str:
    """Returns the results on the lab's page: the scoreboard, a row for each result that comes with the package, and
    what does not hold.
    """
    results = result_store.read_results(result_store.SHIPPED)
    rows, fails = [], []
    for name, result in results.items():
        outcome = read_outcome(result)
        # A few numbers of each result; `sordino lab check` has them all.
        numbers = [
            f"{one.what}: {'diverged' if one.ours is None else f'{one.ours:.4g}'} ({one.published:g})"
            for one in outcome.compared
        ]
        more = [f"{len(numbers) - _MOST_NUMBERS} more"] if len(numbers) > _MOST_NUMBERS else []
        # What holds, what does not, and what this size cannot tell.
        verdicts = [one.verdict for one in outcome.findings]
        counts = " / ".join(str(verdicts.count(verdict)) for verdict in (HOLDS, FAILS, UNTESTED))
        said = _cell("; ".join(numbers[:_MOST_NUMBERS] + more))
        rows.append(
            f"| `{name}` | {result_store.describe_size(result)} | {result['seconds']:.0f} | {said} | {counts} |"
        )
        fails += [
            f"- `{name}` ({result['size']}): “{one.says}” ({one.line}). {one.because}."
            for one in outcome.findings
            if one.verdict == FAILS
        ]
    # The scoreboard first, because it answers the first question of a reader.
    head = "| id | size | CPU s | ours (published) | holds / does not / cannot tell |\n|---|---|---|---|---|\n"
    board = f"### Published numbers\n\n{write_table(score_results(results))}"
    failed = "### What does not hold\n\n" + "\n".join(fails)
    return (
        f"{RESULTS_BEGIN}\n\n{board}\n\n### Every result\n\n{head}" + "\n".join(rows) + f"\n\n{failed}\n\n{RESULTS_END}"
    )


def write_called_private() -> str:
    """Returns the lab's page of methods without a guarantee, and of misprints in the sources."""
    parts = [
        f"## {one.title}\n\n**The source.** {one.says} ({one.line}).\n\n**Why it is wrong.** {one.witness}.\n\n"
        f"**What it costs.** {one.number}.\n"
        for one in list_not_private()
    ]
    head = (
        "# Methods without a guarantee\n\n"
        "One of the five sources of the [lab](lab.md#index) calls each of these methods private, or prints an ε beside\n"
        "it, although it has no such guarantee. 001:400 means line 400 of source 001. The figures are computed by\n"
        "`lab/sordino_lab/source_errors.py`, and `sordino lab page` shows the same list.\n"
    )
    slips = "\n".join(
        f"| {one.line} | {_cell(one.prints)} | {_cell(one.right)} | {_cell(one.follows)} |" for one in SLIPS
    )
    tail = (
        "## Misprints in the sources\n\n"
        "The lab builds what is right. Misprints that weaken a guarantee are listed above as well.\n\n"
        f"| line | what is printed | what is right | what follows from the misprint |\n|---|---|---|---|\n{slips}\n"
    )
    return head + "\n" + "\n".join(parts) + "\n" + tail


def write_judgements() -> str:
    """Returns the lab's page of what every verdict tests: a table for each source, with the verdicts of the results that
    come with the package.
    """
    # A verdict belongs to a sentence; what a figure has not judged yet was not run.
    results = result_store.read_results(result_store.SHIPPED)
    verdicts = {
        (name, one.line, one.says): one.verdict
        for name, result in results.items()
        for one in read_outcome(result).findings
    }
    parts = []
    for number, name in SOURCES.items():
        rows = [
            f"| `{one.id}` | {_cell(one.says)} ({one.line}) | {_cell(one.test)} | {verdicts.get(one.key, 'not run')} |"
            for one in list_judgements()
            if experiments()[one.id].source == number
        ]
        parts.append(
            f"## Source {number}: {name}\n\n"
            "| figure | sentence of the source (line) | holds if | verdict |\n|---|---|---|---|\n"
            + "\n".join(rows)
            + "\n"
        )
    head = (
        "# What every verdict tests\n\n"
        "The [lab](lab.md) judges sentences of its five sources by numbers of its own. This page says for each of them\n"
        "what is tested. 001:449 means line 449 of source 001, which is translated from German; words in brackets are\n"
        "ours. Sentences that are questions, definitions, captions or references claim nothing: they are notes.\n\n"
        "A verdict is *holds*, *does not hold* or *cannot tell*. Below the source's size, or on another network, the lab\n"
        "cannot tell, whatever comes out. Two trainings differ *by more than chance* where the means of their last\n"
        "evaluations are more than two standard errors of the difference apart. The deviation of a seed is that over\n"
        "seeds, and at least that of a test on 10,000 images, or 3 % of a loss; a single seed is taken to spread as the\n"
        "other training does where that has several. Chance alone differs by so much in 4.6 % of all cases where the\n"
        "deviation is known, and in up to 18 % where two seeds of each estimate it. The rules are in\n"
        "`lab/sordino_lab/verdicts.py`, the sentences in `lab/sordino_lab/judgements.toml`. *Not run* means that no\n"
        "result of the sentence comes with the package.\n"
    )
    return head + "\n" + "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")
