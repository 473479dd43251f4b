"""Shows, on the site, an example at the end of a docstring under a heading of its own.

Read by mkdocs.yml; the docstrings are left as they are.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_FIRST = re.compile(r"^>>> ", re.MULTILINE)


class Doctests(griffe.Extension):
    """Puts `Examples:` above examples that have no heading."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Adds the heading to the docstring of every module, class, function and attribute."""
        if obj.docstring is not None:
            obj.docstring.value = with_examples_heading(obj.docstring.value)


def with_examples_heading(text: str) -> str:
    """Returns the docstring with its example in a section of its own."""
    example_start = _FIRST.search(text)
    if example_start is None:
        return text
    lines = text[example_start.start() :].rstrip().split("\n")
    return text[: example_start.start()] + "\n".join(["Examples:", *(f"    {line}" if line else "" for line in lines)])
