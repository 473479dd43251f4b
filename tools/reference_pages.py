"""Writes docs/reference/nouns.md: every sampler, weigher and query that declares itself, from its own docstring.

python -m tools.reference_pages            writes it; `make names` does this
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path

PAGE = Path(__file__).parents[1] / "docs" / "reference" / "nouns.md"
_HEADINGS = {
    "sampling": "Samplers: who is in a lot",
    "weigh": "Weighers: who counts how much",
    "algorithms": "Queries: what is asked of a lot",
}


def page() -> str:
    """The page's text."""
    lines = ["# Samplers, weighers, queries", "", "Written by `make names` from what the nouns declare.", ""]
    for package, heading in _HEADINGS.items():
        lines += [f"## {heading}", ""]
        found = [noun for one in import_module(f"sordino.{package}").DECLARATIONS for noun in one.nouns]
        for noun in found:
            lines += [f"::: {noun.__module__}.{noun.__name__}", "    options:", "      heading_level: 3", ""]
    return "\n".join(lines)


def main() -> int:
    """Write it."""
    PAGE.write_text(page())
    print(PAGE.name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
