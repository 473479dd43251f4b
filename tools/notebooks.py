"""Writes the worked notebooks from their pages, docs/notebooks/*.md.

    python -m tools.notebooks

A page is what is edited: text becomes cells of text, and blocks of `py` become cells of code, to be run from top to bottom
in one session. The page links to its notebook, so that the site shows the one and offers the other.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGES = Path(__file__).parents[1] / "docs" / "notebooks"
_CODE = re.compile(r"^```py\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_DOWNLOAD = re.compile(r"\[Download it as a notebook\]\([^)]*\)\. ?")


def render_notebook(page: Path) -> str:
    """Returns the notebook of a page as the content of its .ipynb file."""
    text = _DOWNLOAD.sub("", page.read_text("utf-8"))
    cells: list[dict[str, Any]] = []
    # Splitting by the blocks of code gives text and code in turn.
    for number, part in enumerate(_CODE.split(text)):
        source = part.strip("\n").splitlines(keepends=True)
        if not source:
            continue
        cell: dict[str, Any] = {"cell_type": "code" if number % 2 else "markdown", "id": f"cell-{len(cells):02d}"}
        cell |= {"metadata": {}, "source": source}
        cells.append(cell | ({"execution_count": None, "outputs": []} if number % 2 else {}))
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    metadata = {"kernelspec": kernel, "language_info": {"name": "python"}}
    notebook = {"cells": cells, "metadata": metadata, "nbformat": 4, "nbformat_minor": 5}
    return json.dumps(notebook, indent=1, ensure_ascii=False) + "\n"


def main() -> int:
    """Writes every notebook; returns the exit code."""
    for page in sorted(PAGES.glob("*.md")):
        page.with_suffix(".ipynb").write_text(render_notebook(page), "utf-8")
        print(page.with_suffix(".ipynb").relative_to(PAGES.parents[1]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
