"""The templates beside this file; HTML is escaped, Markdown has what would break a table or begin a tag defused."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


@cache
def environment() -> Environment:
    """Undefined names are errors."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name is not None and name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    made.filters["md"] = markdown
    return made


def markdown(text: object) -> str:
    """Text that stays on its line and in its cell.

    >>> print(markdown("a < b  c"))
    a &lt; b c
    """
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
