"""Each of the five sources has a notebook, which runs from its first to its last cell at the size of the tests."""

import json
from pathlib import Path

import pytest
from sordino_lab.catalogue import experiments
from sordino_lab.experiment import SOURCES
from sordino_lab.notebook_view import ShownExperiment, show

NOTEBOOKS = sorted((Path(__file__).parents[2] / "lab" / "notebooks").glob("*.ipynb"))


def code_cells(path):
    cells = json.loads(path.read_text("utf-8"))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def test_every_source_has_a_notebook():
    assert [path.name[:3] for path in NOTEBOOKS] == list(SOURCES)


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_figures_of_its_source(path, tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_LAB_SIZE", "tiny")
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    names, shown = {}, []
    for code in code_cells(path):
        if code.startswith("show("):
            shown.append(eval(code, names))
        else:
            exec(compile(code, path.name, "exec"), names)
    assert len(shown) >= 4
    assert {one.experiment.source for one in shown} == {path.name[:3]}
    # One is rendered as a notebook would; drawing all of them is the business of other tests.
    assert "<svg" in shown[0]._repr_html_()


def test_below_the_size_of_the_source_a_notebook_shows_no_verdict(tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path))
    one = show("lr-cosine", size="tiny")
    assert isinstance(one, ShownExperiment)
    assert experiments()["lr-cosine"].title in one._repr_html_()
    assert all(finding.holds is None for finding in show("game", size="tiny").outcome.findings)
