"""The five worked notebooks run from their first to their last cell, and are those that the site shows."""

import ast
import json
from pathlib import Path

import pytest

from tools.notebooks import PAGES, render_notebook

NAMES = ("table", "images", "text", "own_variant", "audit")


def run_cells(path):
    """Runs the code cells of a notebook in one session; returns what the last line of each cell shows."""
    cells = json.loads(path.read_text("utf-8"))["cells"]
    names, shown = {"__name__": "__main__"}, []
    for number, cell in enumerate(cells):
        if cell["cell_type"] != "code":
            continue
        tree = ast.parse("".join(cell["source"]))
        last = ast.Expression(tree.body.pop().value) if isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{path.name}, cell {number}", "exec"), names)
        if last is not None:
            shown.append(eval(compile(last, f"{path.name}, cell {number}", "eval"), names))
    return [one for one in shown if one is not None]


def test_there_are_five_and_each_is_that_of_its_page():
    assert {page.stem for page in PAGES.glob("*.md")} == set(NAMES)
    for name in NAMES:
        page = PAGES / f"{name}.md"
        assert page.with_suffix(".ipynb").read_text("utf-8") == render_notebook(page), "run `python -m tools.notebooks`"
        assert f"({name}.ipynb)" in page.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_runs_from_its_first_to_its_last_cell(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    shown = run_cells(PAGES / f"{name}.ipynb")
    printed = capsys.readouterr().out
    html = "".join(one._repr_html_() for one in shown if hasattr(one, "_repr_html_"))
    # What each of them is about.
    if name in ("table", "images", "text"):
        assert "-differential privacy" in html
    if name == "table":
        assert "# Model card" in printed
        assert Path("runs/customers/report.html").exists()
    if name == "text":
        assert ["good", "bad"] in shown
    if name == "own_variant":
        flat, smooth = (line.split("ε = ")[1] for line in printed.splitlines() if "ε = " in line)
        assert flat == smooth
        assert "Guarantee" not in printed.splitlines()[-1]
    if name == "audit":
        assert printed.splitlines()[0] == "True"
        assert "differential privacy" not in printed
