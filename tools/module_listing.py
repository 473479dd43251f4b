"""Writes docs/modules.md: every module with the first line of its docstring.

python -m tools.module_listing            writes the page; `make names` does this
python -m tools.module_listing --check    exits with 1 if the page is not what it should be; a test does this
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "modules.md"
HEAD = """# Modules

Every module with the first line of its docstring, folder by folder. [Architecture](architecture.md) explains how they work
together. This page is written by `make names`.
"""
LAYERS = (
    ("The library", "sordino", "What a training script imports."),
    (
        "The application",
        "sordino/app",
        "The command line, runs, reports, the planner and data. The library never imports it.",
    ),
    ("The lab", "lab/sordino_lab", "Figures and tables of the papers, a package of its own."),
)


def first_line(path: Path) -> str:
    """Returns the first line of a module's docstring, without its full stop."""
    docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
    return docstring.split("\n")[0].rstrip(".").replace("|", "\\|")


def folders_of(layer: str) -> Iterator[Path]:
    """Yields the folders of a layer that hold modules, those of the application only for the application."""
    root = ROOT / layer
    for folder in sorted({path.parent for path in root.rglob("*.py")}):
        belongs_to_app = (ROOT / "sordino" / "app") in (folder, *folder.parents)
        if layer != "sordino" or not belongs_to_app:
            yield folder


def render_page() -> str:
    """Returns the whole page as Markdown."""
    lines = [HEAD]
    for title, layer, about in LAYERS:
        lines += [f"## {title}", "", about, ""]
        for folder in folders_of(layer):
            modules = [path for path in sorted(folder.glob("*.py")) if path.name != "__init__.py"]
            if not modules:
                continue
            lines += [f"### {folder.relative_to(ROOT).as_posix()}/", "", first_line(folder / "__init__.py") + ".", ""]
            lines += ["| module | |", "|---|---|"]
            lines += [f"| `{path.name}` | {first_line(path)} |" for path in modules]
            lines.append("")
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    """Writes or checks the page."""
    text = render_page()
    stale = not PAGE.exists() or PAGE.read_text() != text
    if stale and "--check" not in arguments:
        PAGE.write_text(text)
    if stale:
        print(PAGE.relative_to(ROOT))
    return int(stale and "--check" in arguments)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
