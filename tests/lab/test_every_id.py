"""Every id of the catalogue runs at the size of the tests, and what comes of it can be kept, read again and drawn."""

import json
import math
from pathlib import Path

import pytest
from sordino_lab import catalogue, store
from sordino_lab.catalogue import experiments
from sordino_lab.experiment import SOURCES, ExperimentSize, read_outcome
from sordino_lab.workbench import Workbench


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """Where trainings are kept, for all ids together: those that share a run make it once."""
    return tmp_path_factory.mktemp("lab")


def test_the_catalogue_is_in_the_order_of_the_papers():
    assert len(experiments()) >= 83
    assert [one.source for one in experiments().values()] == sorted(one.source for one in experiments().values())
    assert {one.source for one in experiments().values()} == set(SOURCES)


def test_facts_without_a_function_are_refused(tmp_path, monkeypatch):
    facts = tmp_path / "figures.toml"
    facts.write_text(catalogue.FACTS.read_text("utf-8") + '\n[figures.nobody-draws-it]\nsource = "000"\n', "utf-8")
    monkeypatch.setattr(catalogue, "FACTS", facts)
    with pytest.raises(ValueError, match="nobody-draws-it"):
        experiments.__wrapped__()


@pytest.mark.parametrize("name", list(experiments()))
def test_an_id_ends_in_panels_that_can_be_kept(name, kept):
    one = experiments()[name]
    found = one.run(Workbench(ExperimentSize.TINY, kept))
    text = json.dumps(store.make_result(one, found, ExperimentSize.TINY, 0.0), allow_nan=False)
    again = read_outcome(json.loads(text))
    assert again.panels
    assert [panel.title for panel in again.panels] == [panel.title for panel in found.panels]
    assert all(panel.series or panel.boxes or panel.field for panel in again.panels)
    assert all(finding.line.split(":")[0] in {"000", "001", "002", "003", "004"} for finding in found.findings)
    assert all(math.isfinite(row.published) for row in found.compared)


@pytest.mark.parametrize("name", list(experiments()))
def test_an_id_says_what_it_is(name):
    one = experiments()[name]
    assert all((one.nouns, one.figure, one.title, one.shows, one.setting, one.reduced, one.lines))
