"""The index of docs/lab.md: paper figure → command → noun, with the German terms of source 001; and the other page."""

from __future__ import annotations

from pathlib import Path

from sordino.lab.catalogue import experiments
from sordino.lab.experiment import SOURCES
from sordino.lab.not_private import entries
from sordino.runs import files

BEGIN, END = "<!-- index: written by sordino.lab.index.write -->", "<!-- end of the index -->"


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
        "computed by `sordino/lab/not_private.py`, and `sordino lab page` shows the same list.\n"
    )
    return head + "\n" + "\n".join(parts)


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def _nouns(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def write(folder: Path) -> None:
    """Both pages, in a folder of documents."""
    page = folder / "lab.md"
    text = page.read_text("utf-8")
    files.write(page, text[: text.index(BEGIN)] + index() + text[text.index(END) + len(END) :])
    files.write(folder / "called_private.md", called_private())
