"""Citations: lines of the sources that the lab names are there, and the numbers it calls published are near them."""

import json
import math
import re
from pathlib import Path

import pytest
from sordino_lab import result_store
from sordino_lab.catalogue import experiments
from sordino_lab.families import projected_updates, sorted_lots
from sordino_lab.scoreboard import published_numbers
from sordino_lab.source_errors import SLIPS, list_not_private

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
CITATION = re.compile(r"\b(00[0-4]):(\d+)(?:[–-](\d+))?")

pytestmark = pytest.mark.skipif(not SEEDS.is_dir(), reason="the sources' texts are not here")


@pytest.fixture(scope="module")
def sources():
    return {path.name[:3]: path.read_text("utf-8").splitlines() for path in sorted(SEEDS.glob("00?_*.txt"))}


def cited(sources, text):
    """The cited lines, each as a list of (source, number)."""
    found = CITATION.findall(text)
    assert found, text
    return [(source, line) for source, first, last in found for line in range(int(first), int(last or first) + 1)]


def has_text(sources, text):
    places = cited(sources, text)
    assert all(1 <= line <= len(sources[source]) for source, line in places), text
    return any(sources[source][line - 1].strip() for source, line in places)


@pytest.mark.parametrize("one", SLIPS, ids=lambda one: one.line)
def test_a_slip_is_where_it_is_said_to_be(sources, one):
    assert has_text(sources, one.line)


def test_the_row_that_a_table_of_the_thesis_repeats_is_that_of_another(sources):
    def row(line):
        return ROW.fullmatch(sources["001"][line - 1]).groups()[1:]

    # Loss and accuracy of DP-SGD at the best C in table 4.5, twice in table 4.10; table 4.7 has the minimum's own.
    assert row(567) == row(786) == row(787) != row(681)


def test_the_printed_expression_of_the_analytic_gaussian_has_no_minimum():
    def phi(x):
        return math.erfc(-x / math.sqrt(2)) / 2

    for epsilon in (0.1, 1.0, 8.0):
        values = [
            phi(-math.sqrt(epsilon * u)) - phi(-math.sqrt(epsilon * (u + 2))) for u in (0.0, 0.5, 1, 2, 5, 10, 20)
        ]
        assert values == sorted(values, reverse=True)


SAID_TO_BE_WRONG = {
    *(
        "000:126",
        "000:224",
        "000:514",
        "001:249",
        "001:675",
        "001:693",
        "001:786–787",
        "001:804",
        "001:977",
        "001:1326",
    ),
    *("002:116", "002:164", "002:185", "003:65", "003:67", "003:187", "003:501", "003:608", "003:625", "003:644–646"),
}


def test_errors_that_were_found_in_the_sources_are_listed():
    assert {one.line for one in SLIPS} >= SAID_TO_BE_WRONG
    # What weakens privacy is among the methods without a guarantee too.
    private = " ".join(one.line for one in list_not_private())
    assert all(line in private for line in ("000:126", "000:224", "003:65–67", "003:187", "003:489, 517", "003:501"))


def test_what_is_called_private_is_where_it_is_said_to_be(sources):
    for one in list_not_private():
        assert has_text(sources, one.line.replace(", ", f", {one.line[:4]}"))


def test_the_lines_of_every_id_are_in_its_source(sources):
    # Later papers are cited by their numbers at arXiv, and their texts are not here.
    for one in (one for one in experiments().values() if one.source in sources):
        for part in one.lines.split(", "):
            assert has_text(sources, f"{one.source}:{part}"), one.id


def test_the_lines_that_findings_cite_have_text():
    sources = {path.name[:3]: path.read_text("utf-8").splitlines() for path in sorted(SEEDS.glob("00?_*.txt"))}
    for path in sorted(result_store.SHIPPED.glob("*.json")):
        for finding in json.loads(path.read_text("utf-8"))["findings"]:
            assert has_text(sources, finding["line"]), (path.stem, finding["line"])


def spellings(value):
    """How a source may print a number."""
    return {f"{value:g}", f"{value:.1f}", f"{value:.2f}", f"{value:.3f}"}


COMPUTED = {
    ("wd-fixed-point", "θ, L2 inside the clip"): "θ*/(1+λ)",
    ("sorting-price", "exact ranking, 250 lots"): "the middle of 50 and 75",
    ("abadi-composition", "strong composition, E = 100"): "Abadi et al. 2016, text to figure 2",
    ("abadi-composition", "moments accountant, E = 100"): "Abadi et al. 2016, text to figure 2",
    ("composition", "without drift, k=1000"): "ε√(2k ln 1/δ)",
}
"""Numbers that follow from what the source prints, or are in the paper that it summarises."""


def prints(text, value):
    """Whether a line of a source prints a number."""
    return any(re.search(rf"(?<![\d.]){re.escape(said)}(?!\d)", text) for said in spellings(value))


def test_a_published_number_is_printed_on_every_line_it_is_cited_from(sources):
    wrong = [
        (number.id, number.what, number.published, number.where)
        for number in published_numbers()
        if (number.id, number.what) not in COMPUTED
        if not all(prints(sources[source][line - 1], number.published) for source, line in cited(sources, number.where))
    ]
    assert not wrong


ROW = re.compile(r"\D+[\d.]+(_\S+)?\t([\d.]+)\t([\d.]+)")
"""A row of a table of the thesis: name and learning rate, loss, accuracy."""
NOT_THEIRS = {786, 787}
"""Rows of table 4.10 that hold the numbers of another table, by line."""


def test_every_row_of_the_tables_of_the_thesis_is_on_the_list(sources):
    # Two numbers a row, each of which is cited by its line.
    listed = {
        (line, number.what.partition(",")[0], number.published)
        for number in published_numbers()
        for source, line in cited(sources, number.where)
        if source == "001"
    }
    rows = {line: ROW.fullmatch(text) for line, text in enumerate(sources["001"], start=1)}
    found = {
        each
        for line, row in rows.items()
        if row and line not in NOT_THEIRS
        for each in ((line, "loss", float(row[2])), (line, "accuracy", float(row[3])))
    }
    assert len(found) > 130
    assert found <= listed
    # What the other way round stands on the list is in a table too.
    assert {each for each in listed if each[1] in ("loss", "accuracy")} == found


def test_tables_are_cited_by_their_captions(sources):
    for table in {**sorted_lots.TABLES, **projected_updates.TABLES}.values():
        for name, line in re.findall(r"T(\w+\.\d+), 001:(\d+)", table.where):
            assert sources["001"][int(line) - 1].startswith(f"Tabelle {name}:"), table.where
