"""The Jinja environment of the report templates.

HTML is escaped, and Markdown is made safe for tables.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined


@cache
def template_environment() -> Environment:
    """Returns the Jinja environment of the report templates, in which undefined names are errors."""
    made = Environment(
        loader=FileSystemLoader(Path(__file__).parent),
        autoescape=lambda name: name is not None and name.endswith(".html.jinja"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
    )
    made.filters["md"] = escape_markdown
    return made


def escape_markdown(text: object) -> str:
    """Returns text for a Markdown template of a report, so that it stays on its line and in its table cell.

    >>> print(escape_markdown("a < b  c"))
    a &lt; b c
    """
    return " ".join(str(text).split()).replace("|", "\\|").replace("<", "&lt;").replace(">", "&gt;")
