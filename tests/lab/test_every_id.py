"""Every id of the catalogue runs at the size of the tests, and what comes of it can be kept, read again and drawn."""

import json
import math
from pathlib import Path

import pytest
from sordino_lab import catalogue, result_store
from sordino_lab.catalogue import experiments
from sordino_lab.experiment import ALL_SOURCES, ExperimentSize, read_outcome
from sordino_lab.workbench import Workbench

from sordino.app.report.method_colours import REFERENCES, colour_of


@pytest.fixture(scope="module")
def kept(tmp_path_factory) -> Path:
    """Where trainings are kept, for all ids together: those that share a run make it once."""
    return tmp_path_factory.mktemp("lab")


def test_the_catalogue_is_in_the_order_of_the_papers():
    assert len(experiments()) >= 83
    assert [one.source for one in experiments().values()] == sorted(one.source for one in experiments().values())
    assert {one.source for one in experiments().values()} == set(ALL_SOURCES)


def test_facts_without_a_function_are_refused(tmp_path, monkeypatch):
    facts = tmp_path / "figures.toml"
    facts.write_text(catalogue.FACTS.read_text("utf-8") + '\n[figures.nobody-draws-it]\nsource = "000"\n', "utf-8")
    monkeypatch.setattr(catalogue, "FACTS", facts)
    with pytest.raises(ValueError, match="nobody-draws-it"):
        experiments.__wrapped__()


def methods_of_one_colour(panel):
    """Methods of a panel that share their colour with another one there; lines of reference are no methods."""
    methods = {one.method for one in [*panel.series, *panel.boxes]} - {"", *REFERENCES}
    colours = [colour_of(method) for method in methods]
    return sorted(method for method in methods if colours.count(colour_of(method)) > 1)


@pytest.mark.parametrize("name", sorted(path.stem for path in result_store.SHIPPED.glob("*.json")))
def test_no_two_methods_of_a_shipped_panel_share_a_colour(name):
    shipped = read_outcome(json.loads((result_store.SHIPPED / f"{name}.json").read_text("utf-8")))
    for panel in shipped.panels:
        assert methods_of_one_colour(panel) == []


@pytest.mark.parametrize("name", list(experiments()))
def test_an_id_ends_in_panels_that_can_be_kept(name, kept):
    one = experiments()[name]
    found = one.run(Workbench(ExperimentSize.TINY, kept))
    text = json.dumps(result_store.make_result(one, found, ExperimentSize.TINY, 0.0), allow_nan=False)
    again = read_outcome(json.loads(text))
    assert again.panels
    assert [panel.title for panel in again.panels] == [panel.title for panel in found.panels]
    assert all(panel.series or panel.boxes or panel.field for panel in again.panels)
    assert all(finding.line.split(":")[0] in {"000", "001", "002", "003", "004"} for finding in found.findings)
    assert all(math.isfinite(row.published) for row in found.compared)
    for panel in again.panels:
        assert methods_of_one_colour(panel) == []


def networks_of(one, size, cache):
    """Which networks an id trains at a size, with the features in front of them."""
    recipes = [plan.settings(size, 0).recipe for plan in one.plans(Workbench(size, cache))]
    return {(recipe.features, recipe.model, recipe.widths, recipe.dataset) for recipe in recipes}


@pytest.mark.parametrize("name", [name for name, one in experiments().items() if one.plans is not None])
def test_no_size_trains_another_network_than_the_full_one(name, tmp_path):
    full = networks_of(experiments()[name], ExperimentSize.FULL, tmp_path)
    for size in (ExperimentSize.QUICK, ExperimentSize.MIDDLE):
        smaller = networks_of(experiments()[name], size, tmp_path)
        # A sweep over widths tries fewer of them at a smaller size.
        assert smaller <= full or name == "abadi-mnist-sweeps"
        assert {network[:2] for network in smaller} <= {network[:2] for network in full}


@pytest.mark.parametrize("name", list(experiments()))
def test_an_id_says_what_it_is(name):
    one = experiments()[name]
    assert all((one.nouns, one.figure, one.title, one.shows, one.setting, one.reduced, one.lines))
