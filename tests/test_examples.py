"""Every example runs, ends with a claim or with the reason why there is none, and differs from the others in a noun."""

import ast
import contextlib
import io
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
EXAMPLES = sorted(FOLDER.glob("*.py"))
BASE = FOLDER / "flat.py"
NOUNS = {"query", "sampler", "private", "optimizer", "data", "model"}
MORE = {"ledger", "statistic"}
"""What an example may name besides: something else that is done to the data, in the same ledger."""
MOST = 2
"""Statements in which an example may differ from flat.py: as a rule one, two where a method is two nouns."""

every_example = pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)


@every_example
def test_an_example_ends_with_a_claim_or_with_the_reason_why_not(path):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(path.read_text(), str(path), "exec"), {"__name__": "__main__"})
    said = out.getvalue()
    assert ("-differential privacy\n" in said) != said.startswith("no privacy guarantee: "), said
    assert said.count("\n") < 10


def statements(path: Path) -> list[ast.stmt]:
    """The script without its docstring, and without what is named besides."""
    return [statement for statement in ast.parse(path.read_text()).body[1:] if noun(statement) not in MORE]


def noun(statement: ast.stmt) -> str:
    """The name that an assignment gives a value to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


@every_example
def test_an_example_is_the_first_one_with_a_noun_swapped(path):
    base, other = statements(BASE), statements(path)
    assert len(base) == len(other)
    swapped = [two for one, two in zip(base, other, strict=True) if ast.unparse(one) != ast.unparse(two)]
    assert {noun(statement) for statement in swapped} <= NOUNS
    assert len(swapped) <= MOST
    assert bool(swapped) == (path != BASE)


@every_example
def test_an_example_says_what_it_is(path):
    assert ast.get_docstring(ast.parse(path.read_text()))
