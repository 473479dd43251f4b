"""What a noun's file declares is what the rest of the library offers, tests and documents."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import sordino as sd
from sordino.app.runs.methods import DECLARATIONS, METHODS
from sordino.registry import find_declarations
from tests.contracts.variants import VARIANTS
from tools import public_names

ROOT = Path(__file__).parents[1]
NOUNS = {noun.__name__: noun for declared in DECLARATIONS for noun in declared.classes}
PARTS = {"Band", "EqualShare", "LeastNoise", "PrivateQuantile"}
"""Nouns that are a part of another one, in whose row they are tested."""
LINES = [line for line in (ROOT / "docs" / "claims.md").read_text().splitlines() if line.startswith("| ")]


@pytest.mark.parametrize("name", sorted(NOUNS))
def test_a_noun_is_public_in_its_package_and_in_sordino(name):
    package = sys.modules[NOUNS[name].__module__.rpartition(".")[0]]
    assert getattr(sd, name) is getattr(package, name) is NOUNS[name]
    assert name in sd.__all__
    assert name in package.__all__


@pytest.mark.parametrize("name", sorted(set(NOUNS) - PARTS))
def test_a_noun_has_a_contract_row_and_a_line_in_the_table_of_claims(name):
    assert any(re.search(rf"\b{name}\b", row.noun) for row in VARIANTS), "a row in tests/contracts/variants.py"
    assert any(re.search(rf"\b{name}\b", line) for line in LINES), "a line in docs/claims.md"


@pytest.mark.parametrize("name", sorted(PARTS))
def test_a_part_of_a_noun_is_in_the_rows_of_another(name):
    rows = (ROOT / "tests" / "contracts" / "variants.py").read_text()
    assert re.search(rf"\b{name}\(", rows)


def test_no_name_is_declared_twice():
    methods = [method.name for declared in DECLARATIONS for method in declared.methods]
    samplers = [one.name for declared in DECLARATIONS for one in declared.samplers]
    scripts = [one.name for declared in DECLARATIONS for one in declared.list_examples()]
    assert len(methods) == len(set(methods)) == len(METHODS)
    assert len(samplers) == len(set(samplers))
    assert len(scripts) == len(set(scripts))


def test_a_file_put_into_a_package_is_found(tmp_path, monkeypatch):
    (tmp_path / "room").mkdir()
    (tmp_path / "room" / "__init__.py").write_text("")
    (tmp_path / "room" / "helps.py").write_text("")
    (tmp_path / "room" / "toy.py").write_text(
        "from sordino.registry import Declaration, Method\n"
        "class Toy: pass\n"
        "DECLARED = Declaration((Toy,), methods=(Method('toy', 'a toy'),))\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    (found,) = find_declarations("room", [str(tmp_path / "room")])
    assert [noun.__name__ for noun in found.classes] == ["Toy"]
    assert [method.name for method in found.methods] == ["toy"]


def test_the_stubs_for_type_checkers_are_what_is_declared():
    stale = [
        path.name for path, text in public_names.render_stubs().items() if not path.exists() or path.read_text() != text
    ]
    assert not stale, "run `make names`"


def test_a_type_checker_sees_a_noun(tmp_path):
    (tmp_path / "user.py").write_text("import sordino as sd\n\nsd.PSAC(bound=1.0)\nsd.PSAC(bond=1.0)\n")
    checked = subprocess.run(
        [sys.executable, "-m", "mypy", "--follow-imports=silent", "--no-error-summary", str(tmp_path / "user.py")],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    assert 'user.py:4: error: Unexpected keyword argument "bond" for "PSAC"' in checked.stdout, checked.stdout


def test_a_module_is_found_by_the_name_it_had():
    from sordino.app import runs

    with pytest.warns(DeprecationWarning, match=r"sordino\.recipes is now sordino\.app\.runs"):
        assert sd.recipes is runs
