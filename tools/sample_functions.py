"""Draws functions at random; a reader who has not seen the code guesses the file of each.

    python -m tools.sample_functions --count 40 --seed 7            the questions: qualified name, signature, docstring
    python -m tools.sample_functions --count 40 --seed 7 --answers  the same with the files

A reader gets the questions and a listing of the tree (`python -m tools.sample_functions --tree`), and nothing else. The
share of files guessed right says how well names, docstrings and tree explain themselves.
"""

from __future__ import annotations

import argparse
import ast
import random
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SHORTEST = 5
"""Lines of the shortest function that is drawn; shorter ones are read where they are called."""


def python_files() -> list[Path]:
    """Returns the files of library, application and lab, without generated ones."""
    folders = [ROOT / "sordino", ROOT / "lab"]
    return sorted(path for folder in folders if folder.exists() for path in folder.rglob("*.py"))


def functions_in(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    """Yields the functions of a file with their qualified names, as a traceback shows them: `Class.method`."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
            yield from functions_in(node, f"{prefix}{node.name}.")
        else:
            yield from functions_in(node, f"{prefix}{node.name}." if isinstance(node, ast.ClassDef) else prefix)


def draw(count: int, seed: int) -> list[tuple[Path, str]]:
    """Returns `count` functions, each with the file it is in, drawn uniformly by `seed`."""
    found: list[tuple[Path, str]] = []
    for path in python_files():
        for name, node in functions_in(ast.parse(path.read_text())):
            if node.name.startswith("__") or (node.end_lineno or node.lineno) - node.lineno + 1 < SHORTEST:
                continue
            docstring = ast.get_docstring(node) or "(no docstring)"
            first_paragraph = " ".join(docstring.split("\n\n")[0].split())
            found.append((path, f"{name}({ast.unparse(node.args)})\n      {first_paragraph}"))
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
