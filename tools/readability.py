"""Measures how readable the source is: docstrings, comments, names and size.

    python -m tools.readability                 prints a table for each layer
    python -m tools.readability --list          also lists every function that should be mended
    python -m tools.readability --check         exits with 1 if a function breaks a rule of CONTRIBUTING.md

The rules: a function of more than six lines has a docstring; a docstring is a sentence, not a fragment; a function is named
by a verb or a noun, never by a bare participle such as `told` or `settled`.
"""

from __future__ import annotations

import argparse
import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
LAYERS = {"library": ROOT / "sordino", "application": ROOT / "sordino" / "app", "lab": ROOT / "lab"}
LONGEST_UNDOCUMENTED = 6
"""Lines that a function may have, from `def` to its end, and do without a docstring."""

IRREGULAR_PARTICIPLES = frozenset(
    {
        *("asked", "begun", "bound", "broken", "brought", "built", "caught", "chosen", "dealt", "drawn", "fed", "felt"),
        *("found", "given", "gone", "got", "grown", "had", "heard", "held", "kept", "known", "laid", "left", "lent"),
        *("lost", "made", "meant", "met", "paid", "said", "seen", "sent", "shown", "spent", "stood", "taken", "taught"),
        *("thought", "told", "undone", "understood", "won", "worn", "written"),
    }
)
"""Participles that do not end in -ed. `cut`, `put`, `read`, `set`, `split` and `spread` are verbs as well, so they are
not listed."""
NOUNS_IN_ED = frozenset(
    {"seed", "need", "feed", "speed", "embed", "shed", "proceed", "exceed", "succeed", "bed", "red"}
)
FRAGMENT_STARTS = re.compile(
    r"(The same|As (without|above|before|it|in)|Of |For |From |With(out)? |In |At |On |By |To |Where |Whose |Which |What |"
    r"Who |How |When |Whether |Nor |And |Or |So |If |One |Each |Every |All |That |This |Its |Their )"
)
"""First words of docstrings that are fragments: a sentence about a function begins with its verb."""


@dataclass
class Findings:
    """What was counted in one layer."""

    code_lines: int = 0
    comment_lines: int = 0
    files: int = 0
    functions: int = 0
    undocumented: list[str] = field(default_factory=list)
    fragments: list[str] = field(default_factory=list)
    participles: list[str] = field(default_factory=list)


def functions_of(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Yields every function and method of a module, nested ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def is_bare_participle(name: str) -> bool:
    """Returns whether a function name is one word and that word is a past participle."""
    word = name.strip("_")
    if "_" in word or not word or name.startswith("__"):
        return False
    if word in IRREGULAR_PARTICIPLES:
        return True
    return word.endswith("ed") and word not in NOUNS_IN_ED


def is_property(node: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Returns whether a function is a property, which is named by a noun or an adjective."""
    names = {ast.unparse(decorator).split("(")[0].split(".")[-1] for decorator in node.decorator_list}
    return bool(names & {"property", "cached_property", "setter"})


def is_fragment(docstring: str, *, of_property: bool) -> bool:
    """Returns whether the first sentence of a function's docstring does not begin with a verb.

    Properties describe a thing and may begin with a noun phrase; for them only cross-references such as "The same for two"
    count.
    """
    first_line = docstring.strip().split("\n")[0]
    if of_property:
        return re.match(r"(The same\b|As (without|above|before)\b|Nor\b|And\b|Or\b|See )", first_line) is not None
    return FRAGMENT_STARTS.match(first_line) is not None


def count_lines(text: str) -> tuple[int, int]:
    """Returns the number of lines with code and of lines with nothing but a comment; docstrings and blanks are neither."""
    code: set[int] = set()
    comments: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comments.add(token.start[0])
        elif token.type not in (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENDMARKER):
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        # A string that stands alone documents a module, a class, a function or the field above it.
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            code.difference_update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(code), len(comments - code)


def measure(paths: Iterator[Path]) -> Findings:
    """Counts what the module's docstring names in the given files."""
    findings = Findings()
    for path in paths:
        text = path.read_text()
        code, comments = count_lines(text)
        findings.files += 1
        findings.code_lines += code
        findings.comment_lines += comments
        for node in functions_of(ast.parse(text)):
            where = f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"
            docstring = ast.get_docstring(node)
            findings.functions += 1
            length = (node.end_lineno or node.lineno) - node.lineno + 1
            overloads = any("overload" in ast.unparse(decorator) for decorator in node.decorator_list)
            if docstring is None and length > LONGEST_UNDOCUMENTED and not overloads and node.name != "__init__":
                findings.undocumented.append(where)
            if docstring is not None and is_fragment(docstring, of_property=is_property(node)):
                findings.fragments.append(f"{where}: {docstring.splitlines()[0][:80]}")
            if is_bare_participle(node.name) and not is_property(node):
                findings.participles.append(where)
    return findings


def files_of(layer: str) -> Iterator[Path]:
    """Yields the Python files of a layer; those of the application do not count for the library."""
    for path in sorted(LAYERS[layer].rglob("*.py")):
        if layer != "library" or LAYERS["application"] not in path.parents:
            yield path


def main(arguments: list[str]) -> int:
    """Prints the table, and the list if it is asked for; returns 1 if `--check` finds anything."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--list", action="store_true", help="list every function that should be mended")
    parser.add_argument("--check", action="store_true", help="exit with 1 if there is one")
    options = parser.parse_args(arguments)
    print(
        f"{'layer':12} {'files':>6} {'code':>7} {'comments/1000':>14} "
        f"{'undocumented':>13} {'fragments':>10} {'participles':>12}"
    )
    broken = 0
    for layer in LAYERS:
        found = measure(files_of(layer))
        density = 1000 * found.comment_lines / max(1, found.code_lines)
        counts = [len(found.undocumented), len(found.fragments), len(found.participles)]
        broken += sum(counts)
        print(
            f"{layer:12} {found.files:6} {found.code_lines:7} {density:14.1f} {counts[0]:13} {counts[1]:10} {counts[2]:12}"
        )
        if options.list:
            for heading, rows in (
                ("no docstring", found.undocumented),
                ("fragment", found.fragments),
                ("participle", found.participles),
            ):
                for row in rows:
                    print(f"  {heading:12} {row}")
    return int(bool(broken) and options.check)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
