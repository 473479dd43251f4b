"""Every id of the catalogue runs at the size of the tests, and what comes of it can be kept, read again and drawn."""

import json
import math
from pathlib import Path

import pytest
from sordino_lab import store
from sordino_lab.catalogue import experiments
from sordino_lab.experiment import outcome
from sordino_lab.order import ORDER
from sordino_lab.size import ExperimentSize
from sordino_lab.workbench import Workbench


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """Where trainings are kept, for all ids together: those that share a run make it once."""
    return tmp_path_factory.mktemp("lab")


def test_the_order_of_the_papers_names_every_id_once():
    assert sorted(ORDER) == sorted(experiments())
    assert list(experiments()) == list(ORDER)


@pytest.mark.parametrize("name", ORDER)
def test_an_id_ends_in_panels_that_can_be_kept(name, kept):
    one = experiments()[name]
    found = one.run(Workbench(ExperimentSize.TINY, kept))
    text = json.dumps(store.table(one, found, ExperimentSize.TINY, 0.0), allow_nan=False)
    again = outcome(json.loads(text))
    assert again.panels
    assert [panel.title for panel in again.panels] == [panel.title for panel in found.panels]
    assert all(panel.series or panel.boxes or panel.field for panel in again.panels)
    assert all(finding.line.split(":")[0] in {"000", "001", "002", "003", "004"} for finding in found.findings)
    assert all(math.isfinite(row.published) for row in found.compared)


@pytest.mark.parametrize("name", ORDER)
def test_an_id_says_what_it_is(name):
    one = experiments()[name]
    assert all((one.nouns, one.shows, one.setting, one.reduced, one.lines))
    head = (Path(store.__file__).parent / "experiments" / f"{name.replace('-', '_')}.py").read_text().split('"""')[1]
    for fact in ("source ", "setting ", "reduced "):
        assert f"\n{fact}" in head
