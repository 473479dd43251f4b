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
        flat, smooth, too_bold = (line.split("ε = ")[1] for line in printed.splitlines())
        assert flat == smooth == too_bold
    if name == "audit":
        assert printed.splitlines()[0] == "True"
        assert "differential privacy" not in printed


def test_a_rule_that_promises_too_little_is_held_to_its_promise():
    """The claim of the last cell of own_variant is true: no record moves the sum further than was promised."""
    import torch

    from sordino.clipping.clipping_rule import bound_weights
    from sordino.per_sample import Norms
    from sordino.release.sensitivity import Sensitivity

    norms = Norms(torch.tensor([[100.0], [0.0001]]), ("weight",))  # squared lengths: 10 and 0.01
    weights = bound_weights(torch.tensor([[0.1], [1.0]]), norms, Sensitivity(l2=0.05), lambda: (1,))
    assert (weights[:, 0] * norms.squared[:, 0].sqrt()).tolist() == pytest.approx([0.05, 0.01], rel=1e-3)


SEARCHED = {
    "predict": "tutorials/own_data.md",
    "class weights": "tutorials/own_data.md",
    "missing values": "tutorials/own_data.md",
    "streaming": "how_to/streams.md",
    "compile": "faq.md",
    "GPU": "how_to/gpu.md",
}
"""Words that people type into the search of the site, and the page that they look for."""


@pytest.mark.parametrize("words", SEARCHED)
def test_a_search_of_the_site_finds_the_page(words):
    docs = PAGES.parent
    pages = {str(page.relative_to(docs)): page.read_text("utf-8").lower() for page in docs.rglob("*.md")}
    found = [name for name, text in pages.items() if words.lower() in text and not name.startswith("reference")]
    assert SEARCHED[words] in found
