"""What every verdict tests: one plain sentence for each finding, and a page that shows them."""

import ast
import json
from collections import Counter
from pathlib import Path

import pytest
import sordino_lab.families
from sordino_lab import result_store
from sordino_lab.catalogue import experiments
from sordino_lab.families import projected_updates, sorted_lots
from sordino_lab.judgements import list_judgements
from sordino_lab.pages import write_judgements
from sordino_lab.training_curves import TrainedCurve
from sordino_lab.training_store import FinishedTraining
from sordino_lab.verdicts import gets_worse, is_better, reaches, require_all

ROOT = Path(__file__).parents[2]
SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
BUILT = {"wd-cifar-decay", "abadi-mnist"}
"""Figures whose sentences are made of words and numbers, of which not all are in a shipped result."""


def shipped_findings():
    """Every finding of every shipped result, by id, line and sentence."""
    return [
        (path.stem, finding["line"], finding["says"])
        for path in sorted(result_store.SHIPPED.glob("*.json"))
        for finding in json.loads(path.read_text("utf-8"))["findings"]
    ]


def test_every_finding_of_a_shipped_result_has_exactly_one_entry():
    entries = Counter(one.key for one in list_judgements())
    assert [key for key, count in entries.items() if count > 1] == []
    assert [key for key in shipped_findings() if entries[key] != 1] == []


def test_every_sentence_about_a_table_of_the_thesis_has_an_entry():
    entries = {one.key for one in list_judgements()}
    tables = {**sorted_lots.TABLES, **projected_updates.TABLES}
    wanted = {(name, one.line, one.says) for name, table in tables.items() for one in table.says}
    assert wanted
    assert wanted <= entries


def test_every_entry_is_of_a_figure_and_of_a_sentence_that_it_judges():
    # Sentences stand in the code of the families, or were made there and are in a shipped result.
    found = {says for _, _, says in shipped_findings()}
    for path in Path(sordino_lab.families.__path__[0]).glob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        found |= {node.value for node in ast.walk(tree) if isinstance(node, ast.Constant)}
    for one in list_judgements():
        assert one.id in experiments(), one
        assert one.says in found or one.id in BUILT, one
        assert one.test, one
        assert not one.test.endswith("."), one


def test_entries_stand_in_the_order_of_the_papers():
    order = list(experiments())
    places = [order.index(one.id) for one in list_judgements()]
    assert places == sorted(places)


@pytest.mark.skipif(not SEEDS.is_dir(), reason="the sources' texts are not here")
def test_the_lines_of_all_entries_have_text():
    sources = {path.name[:3]: path.read_text("utf-8").splitlines() for path in sorted(SEEDS.glob("00?_*.txt"))}
    for one in list_judgements():
        source, line = one.line.split(":")
        assert sources[source][int(line) - 1].strip(), one


def test_the_page_is_as_the_code_says():
    assert (ROOT / "docs" / "lab_judgements.md").read_text("utf-8") == write_judgements()


def trained(*accuracies, field="test_accuracy"):
    return TrainedCurve(None, tuple(FinishedTraining([{field: one}], 1.0, "", "", 1.0, {}) for one in accuracies))


def test_a_difference_within_the_noise_decides_nothing():
    # Several seeds have their own spread; a single one has that of a test on 10,000 images, twice.
    assert is_better(trained(0.90, 0.92), trained(0.85, 0.86)) is True
    assert is_better(trained(0.90, 0.92), trained(0.905, 0.915)) is None
    assert is_better(trained(0.85), trained(0.855)) is None
    assert is_better(trained(0.85), trained(0.87)) is False
    assert is_better(trained(0.87), trained(0.85), by=3.0) is False
    assert reaches(trained(0.95), 94.8) is None
    assert reaches(trained(0.95), 94.0) is True


def test_of_losses_less_is_better():
    low, high = trained(0.5, field="test_loss"), trained(0.6, field="test_loss")
    assert is_better(low, high, "test_loss") is True
    assert is_better(high, low, "test_loss") is False
    assert is_better(low, trained(0.51, field="test_loss"), "test_loss") is None


def test_a_row_gets_worse_if_its_end_is_lower_and_nothing_rises():
    assert gets_worse([trained(0.9), trained(0.7), trained(0.5)]) is True
    assert gets_worse([trained(0.9), trained(0.5), trained(0.7)]) is False
    assert gets_worse([trained(0.9), trained(0.9), trained(0.899)]) is None


def test_exceptions_are_counted_against_what_is_open():
    assert require_all([True, True, None], exceptions=1) is True
    assert require_all([True, None, None], exceptions=1) is None
    assert require_all([True, False, False], exceptions=1) is False
