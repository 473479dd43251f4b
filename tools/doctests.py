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
            obj.docstring.value = headed(obj.docstring.value)


def headed(text: str) -> str:
    """Returns the docstring with its example in a section of its own."""
    found = _FIRST.search(text)
    if found is None:
        return text
    lines = text[found.start() :].rstrip().split("\n")
    return text[: found.start()] + "\n".join(["Examples:", *(f"    {line}" if line else "" for line in lines)])
