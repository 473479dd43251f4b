"""Citations: lines of the sources that the lab names are there, and the numbers it calls published are near them."""

import json
import re
from pathlib import Path

import pytest
from sordino_lab import result_store
from sordino_lab.catalogue import experiments
from sordino_lab.scoreboard import published_numbers
from sordino_lab.source_errors import SLIPS, list_not_private

SEEDS = Path(__file__).parents[3] / "shared" / "seeds"
CITATION = re.compile(r"\b(00[0-4]):(\d+)(?:[–-](\d+))?")
NEAR = 16
"""Lines around a citation in which a number has to be: a table has up to 14 rows."""

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
    **{
        (number.id, number.what): "follows from the coefficients 1, 1/2, 3/8, … and 1, −1/2, −1/8, …"
        for number in published_numbers()
        if "arXiv:" in number.where
    },
}
"""Numbers that follow from what the source prints, or are in the paper that it summarises."""


def test_a_published_number_is_printed_near_the_line_it_is_cited_from(sources):
    wrong = []
    for number in published_numbers():
        if (number.id, number.what) in COMPUTED:
            continue
        near = "\n".join(
            text
            for source, line in cited(sources, number.where)
            for text in sources[source][max(0, line - NEAR) : line + NEAR]
        )
        if not any(re.search(rf"(?<![\d.]){re.escape(said)}(?!\d)", near) for said in spellings(number.published)):
            wrong.append((number.id, number.what, number.published, number.where))
    assert not wrong
