"""For the site: an example that stands at the end of a docstring without a heading is shown as one.

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
        """Called for every module, class, function and attribute that was read."""
        if obj.docstring is not None:
            obj.docstring.value = headed(obj.docstring.value)


def headed(text: str) -> str:
    """The docstring with its example in a section of its own."""
    found = _FIRST.search(text)
    if found is None:
        return text
    lines = text[found.start() :].rstrip().split("\n")
    return text[: found.start()] + "\n".join(["Examples:", *(f"    {line}" if line else "" for line in lines)])
