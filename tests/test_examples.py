"""Every example runs, ends with a claim or with the reason why there is none, and differs from the others in a noun."""

import ast
import contextlib
import io
import runpy
from pathlib import Path
from types import SimpleNamespace

import pytest

FOLDER = Path(__file__).parents[1] / "examples"
variants = SimpleNamespace(**runpy.run_path(str(FOLDER / "variants.py")))
FILES = {path.stem: path.read_text() for path in sorted(FOLDER.glob("*.py")) if path.stem != "variants"}
SCRIPTS = {**FILES, **{f"variants-{name}": variants.source(one) for name, one in variants.EXAMPLES.items()}}
"""Those that are files, and those that follow from what the library declares."""
BASE = FILES["flat"]
SAME = ("flat", "variants-dpsgd", "variants-poisson")
"""The plain one by three names."""
NOUNS = {"query", "sampler", "private", "optimizer", "data", "model"}
MORE = {"ledger", "statistic"}
"""What an example may name besides: something else that is done to the data, in the same ledger."""
MOST = 2
"""Statements in which an example may differ from flat.py: as a rule one, two where a method is two nouns."""

every_example = pytest.mark.parametrize("name", SCRIPTS)


@every_example
def test_an_example_ends_with_a_claim_or_with_the_reason_why_not(name):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        exec(compile(SCRIPTS[name], name, "exec"), {"__name__": "__main__"})
    said = out.getvalue()
    assert ("-differential privacy\n" in said) != said.startswith("no privacy guarantee: "), said
    assert said.count("\n") < 10


def statements(script: str) -> list[ast.stmt]:
    """The script without its docstring, and without what is named besides."""
    return [statement for statement in ast.parse(script).body[1:] if noun(statement) not in MORE]


def noun(statement: ast.stmt) -> str:
    """The name that an assignment gives a value to."""
    targets = statement.targets if isinstance(statement, ast.Assign) else []
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


@every_example
def test_an_example_is_the_first_one_with_a_noun_swapped(name):
    base, other = statements(BASE), statements(SCRIPTS[name])
    assert len(base) == len(other)
    swapped = [two for one, two in zip(base, other, strict=True) if ast.unparse(one) != ast.unparse(two)]
    assert {noun(statement) for statement in swapped} <= NOUNS
    assert len(swapped) <= MOST
    assert bool(swapped) == (name not in SAME)


@every_example
def test_an_example_says_what_it_is(name):
    assert ast.get_docstring(ast.parse(SCRIPTS[name]))


def test_the_variants_are_listed_printed_and_run_by_name(capsys):
    assert variants.main([]) == 0
    listed = capsys.readouterr().out
    assert all(f"{name} " in listed for name in variants.EXAMPLES)
    assert variants.main(["psac", "--source"]) == 0
    assert capsys.readouterr().out == SCRIPTS["variants-psac"]
    assert variants.main(["no-such-thing"]) == 2
    assert "no-such-thing: there is " in capsys.readouterr().err
