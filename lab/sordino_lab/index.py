"""docs/lab.md: the index paper figure → command → noun, with the German terms of source 001, and what came out; and the
page *called private, and is not*.
"""

from __future__ import annotations

from pathlib import Path

from sordino.app.runs import atomic_files
from sordino_lab import store
from sordino_lab.catalogue import experiments
from sordino_lab.experiment import FAILS, HOLDS, SOURCES, UNTESTED, outcome
from sordino_lab.not_private import entries
from sordino_lab.scoreboard import score, table
from sordino_lab.slips import SLIPS

BEGIN, END = "<!-- index: written by sordino_lab.index.write -->", "<!-- end of the index -->"
CAME, OUT = "<!-- results: written by sordino_lab.index.write -->", "<!-- end of the results -->"
_MOST = 4
"""Numbers of an id that the table has; `sordino lab check` has all."""


def index() -> str:
    """A table for each source."""
    parts = []
    for number, name in SOURCES.items():
        some = [one for one in experiments().values() if one.source == number]
        rows = [
            f"| {' | '.join((_cell(one.figure), _cell(one.title), f'`sordino lab run {one.id}`'))} | "
            f"{_nouns(one.nouns)} | {_cell(one.terms)} |"
            for one in some
        ]
        parts.append(
            f"### Source {number}: {name}\n\n| figure | what | command | made of | in the source |\n|---|---|---|---|---|\n"
            + "\n".join(rows)
        )
    return f"{BEGIN}\n\n" + "\n\n".join(parts) + f"\n\n{END}"


def came_out() -> str:
    """The results that come with the package: a row for each, and what does not hold."""
    results = store.read(store.SHIPPED)
    rows, fails = [], []
    for name, result in results.items():
        found = outcome(result)
        numbers = [
            f"{one.what}: {'diverged' if one.ours is None else f'{one.ours:.4g}'} ({one.published:g})"
            for one in found.compared
        ]
        more = [f"{len(numbers) - _MOST} more"] if len(numbers) > _MOST else []
        verdicts = [one.verdict for one in found.findings]
        counts = [str(verdicts.count(verdict)) for verdict in (HOLDS, FAILS, UNTESTED)]
        rows.append(
            f"| `{name}` | {result['size']} | {result['seconds']:.0f} | {_cell('; '.join(numbers[:_MOST] + more))} | "
            f"{' / '.join(counts)} |"
        )
        fails += [
            f"- `{name}` ({result['size']}): “{one.says}” ({one.line}). {one.because}."
            for one in found.findings
            if one.verdict == FAILS
        ]
    head = (
        "| id | size | CPU s | ours (published) | holds / does not / cannot tell |\n|---|---|---|---|---|\n"
        + "\n".join(rows)
    )
    board = f"### Published numbers\n\n{table(score(results))}"
    failed = "### What does not hold\n\n" + "\n".join(fails)
    return f"{CAME}\n\n{board}\n\n### Every result\n\n{head}\n\n{failed}\n\n{OUT}"


def called_private() -> str:
    """The page *called private, and is not*."""
    parts = [
        f"## {one.title}\n\n**The source:** {one.says} ({one.line}).\n\n**Our witness:** {one.witness}.\n\n"
        f"**The number:** {one.number}.\n"
        for one in entries()
    ]
    head = (
        "# Called private, and is not\n\n"
        "What a source calls private, or prints an ε beside, and what is true of it. The numbers are\n"
        "computed by `lab/sordino_lab/not_private.py`, and `sordino lab page` shows the same list.\n"
    )
    slips = "\n".join(
        f"| {one.line} | {_cell(one.prints)} | {_cell(one.right)} | {_cell(one.follows)} |" for one in SLIPS
    )
    tail = (
        "## Slips of the sources\n\n"
        "What is printed and is not so; the lab builds what is right. Those that weaken a guarantee are above too.\n\n"
        f"| line | prints | right | what follows |\n|---|---|---|---|\n{slips}\n"
    )
    return head + "\n" + "\n".join(parts) + "\n" + tail


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _nouns(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def write(folder: Path) -> None:
    """Both pages, in a folder of documents."""
    page = folder / "lab.md"
    text = page.read_text("utf-8")
    for begin, made, end in ((BEGIN, index(), END), (CAME, came_out(), OUT)):
        text = text[: text.index(begin)] + made + text[text.index(end) + len(end) :]
    atomic_files.write_file(page, text)
    atomic_files.write_file(folder / "called_private.md", called_private())
