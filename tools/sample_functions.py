"""Draws functions at random; a reader who has not seen the code guesses the file of each.

    python -m tools.sample_functions --count 40 --seed 7            the questions: name, signature, docstring
    python -m tools.sample_functions --count 40 --seed 7 --answers  the same with the files

A reader gets the questions and a listing of the tree (`python -m tools.sample_functions --tree`), and nothing else. The
share of files guessed right says how well names, docstrings and tree explain themselves.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORTEST = 5
"""Lines of the shortest function that is drawn; shorter ones are read where they are called."""


def python_files() -> list[Path]:
    """Returns the files of library, application and lab, without generated ones."""
    folders = [ROOT / "sordino", ROOT / "lab"]
    return sorted(path for folder in folders if folder.exists() for path in folder.rglob("*.py"))


def draw(count: int, seed: int) -> list[tuple[Path, str]]:
    """Returns `count` functions, each with the file it is in, drawn uniformly by `seed`."""
    found: list[tuple[Path, str]] = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text())):
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
                continue
            if (node.end_lineno or node.lineno) - node.lineno + 1 < SHORTEST:
                continue
            docstring = ast.get_docstring(node) or "(no docstring)"
            found.append((path, f"{node.name}({ast.unparse(node.args)})\n      {docstring.splitlines()[0]}"))
    return random.Random(seed).sample(found, count)


def print_tree() -> None:
    """Prints the files of the three layers, folder by folder, without what is in them."""
    for path in python_files():
        print(path.relative_to(ROOT))


def main(arguments: list[str]) -> int:
    """Prints the questions, the answers or the tree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--count", type=int, default=40, help="how many functions (40)")
    parser.add_argument("--seed", type=int, default=0, help="which sample (0)")
    parser.add_argument("--answers", action="store_true", help="print the file of each function")
    parser.add_argument("--tree", action="store_true", help="print the files and nothing else")
    options = parser.parse_args(arguments)
    if options.tree:
        print_tree()
        return 0
    for number, (path, question) in enumerate(draw(options.count, options.seed), start=1):
        print(f"{number:3}. {question}")
        if options.answers:
            print(f"      → {path.relative_to(ROOT)}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
