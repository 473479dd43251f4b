"""The page, the commands and the documents about the lab."""

import json
import re
from pathlib import Path

import pytest
from sordino_lab import result_store
from sordino_lab.catalogue import experiments
from sordino_lab.pages import describe_lack, write_called_private, write_index, write_results_table
from sordino_lab.scoreboard import published_numbers
from sordino_lab.source_errors import list_not_private

from sordino.app.cli.main import main

ROOT = Path(__file__).parents[2]


SHIPPED = sorted(path.stem for path in result_store.SHIPPED.glob("*.json"))


def test_results_that_come_with_the_package_are_of_ids_that_are_there_and_have_the_facts_of_today():
    assert set(SHIPPED) <= set(experiments())
    for name in SHIPPED:
        kept = json.loads((result_store.SHIPPED / f"{name}.json").read_text("utf-8"))
        facts = experiments()[name].facts()
        assert {key: kept[key] for key in facts} == json.loads(json.dumps(facts))
        assert kept["size"] in {"quick", "middle", "full"}


def test_the_page_has_every_id_with_figure_numbers_and_claim_and_loads_nothing(tmp_path, capsys):
    assert main(["lab", "page", "--out", str(tmp_path), "--no-browser"]) == 0
    text = (tmp_path / "index.html").read_text()
    for name in experiments():
        card = text[text.index(f'id="{name}"') :]
        assert f"sordino lab run {name}" in card
        if name in SHIPPED:
            card = card[: card.index("</section>")]
            assert all(part in card for part in ("<svg", "Claim:"))
            assert "published" in card or "prints no number" in card
    assert 'id="not-private"' in text
    assert not re.search(r'(src|href)="(https?:)?//', text)


def test_the_page_leads_to_the_documentation_of_the_clone(tmp_path):
    assert main(["lab", "page", "--out", str(tmp_path), "--no-browser"]) == 0
    text = (tmp_path / "index.html").read_text()
    # Anchors of the page itself and pictures that are part of it lead nowhere else.
    links = set(re.findall(r'<a href="([^"#]+)"', text))
    assert {ROOT / "docs" / "lab.md", ROOT / "docs" / "reference" / "clipping" / "flat.md"} <= {
        (tmp_path / link).resolve() for link in links
    }
    assert all((tmp_path / link).is_file() for link in links)


def test_the_page_lists_every_published_number_by_what_became_of_it(tmp_path):
    assert main(["lab", "page", "--out", str(tmp_path), "--no-browser"]) == 0
    board = (tmp_path / "index.html").read_text().partition('id="scoreboard"')[2].partition("</section>")[0]
    counts = [int(number) for number in re.findall(r"<summary>(\d+) ", board)]
    assert sum(counts) == len(published_numbers()) == board.count("</tr>") - len(counts)


def test_the_contents_say_what_figures_lack(tmp_path):
    assert main(["lab", "page", "--out", str(tmp_path), "--no-browser"]) == 0
    contents = (tmp_path / "index.html").read_text().partition('id="contents"')[2].partition("</section>")[0]
    entries = dict(re.findall(r'<li>.*?href="#([^"]*)">(.*?)</li>', contents))
    results = result_store.read_results(tmp_path)
    assert set(entries) == set(experiments())
    for name, entry in entries.items():
        lack = describe_lack(results[name]) if name in results else "not run here yet"
        assert entry.endswith(f"({lack})</span>" if lack else "</a>")


def test_a_note_stands_once_on_its_card(tmp_path):
    assert main(["lab", "page", "--out", str(tmp_path), "--no-browser"]) == 0
    text = (tmp_path / "index.html").read_text()
    name, result = next((n, one) for n, one in result_store.read_results(tmp_path).items() if one["note"])
    card = text[text.index(f'<section class="card entry" id="{name}"') :].partition("</section>")[0]
    # An apostrophe is written otherwise on a page.
    assert card.count(result["note"].partition("'")[2]) == 1


def test_a_page_of_many_figures_is_light(tmp_path):
    assert main(["lab", "page", "--out", str(tmp_path), "--no-browser"]) == 0
    text = (tmp_path / "index.html").read_text()
    # A panel takes some 11 kB; written as matplotlib writes it, without the styles shared, it took 18.
    assert len(text) < 13_000 * text.count("<svg")


def test_the_commands_speak_json(tmp_path, capsys):
    assert main(["lab", "list", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)) == len(experiments())
    assert main(["lab", "check", "wd-fixed-point", "--json", "--out", str(tmp_path)]) == 0
    (found,) = json.loads(capsys.readouterr().out).values()
    assert sorted(row["published"] for row in found["compared"]) == pytest.approx([2.0, 2.5333], abs=1e-4)
    assert {row["verdict"] for row in found["findings"]} == {"holds", "does not hold"}


def test_show_says_what_is_known(tmp_path, capsys):
    assert main(["lab", "show", "abadi-composition", "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "published 9.34" in said
    assert "Figure 2" in said


def test_one_size_at_a_time(capsys):
    assert main(["lab", "run", "lr-cosine", "--quick", "--full"]) == 2
    assert "--quick and --full" in capsys.readouterr().err


def test_what_is_called_private_has_witness_and_number():
    assert len(list_not_private()) == 11
    assert all(one.witness and one.number and re.match(r"00\d:\d", one.line) for one in list_not_private())


def test_the_documents_are_as_the_code_says():
    text = (ROOT / "docs" / "lab.md").read_text()
    assert write_index() in text
    assert write_results_table() in text
    assert (ROOT / "docs" / "called_private.md").read_text() == write_called_private()
