"""The scoreboard counts what was run as the source did, and what came out as the source prints."""

import json
from collections import Counter

import pytest
from sordino_lab import result_store
from sordino_lab.catalogue import experiments
from sordino_lab.experiment import SOURCES, Compared, ExperimentSize
from sordino_lab.families import projected_updates, sorted_lots
from sordino_lab.refresh_results import bring_in_line, write_if_changed
from sordino_lab.scoreboard import (
    MET,
    MISSED,
    NOT_RUN,
    REASONS,
    is_met,
    published_numbers,
    score_results,
    write_summary,
    write_table,
)
from sordino_lab.training_store import digest
from sordino_lab.workbench import Workbench

from sordino.app.cli.main import main


@pytest.mark.parametrize(
    ("one", "met"),
    [
        (Compared("accuracy", 91.0, 90.0, "", unit="%"), True),
        (Compared("accuracy", 91.1, 90.0, "", unit="%"), False),
        (Compared("accuracy", 92.0, 90.0, "", spread=2.0, unit="%", seeds=4), True),
        (Compared("accuracy", 92.1, 90.0, "", spread=2.0, unit="%", seeds=4), False),
        (Compared("accuracy", 92.0, 90.0, "", spread=2.0, unit="%", seeds=1), False),
        (Compared("loss", 1.05, 1.0, ""), True),
        (Compared("loss", 1.06, 1.0, ""), False),
        (Compared("loss", None, 1.0, ""), False),
    ],
)
def test_how_near_is_near(one, met):
    assert is_met(one) is met


def test_only_the_size_of_the_source_counts():
    number = next(one for one in published_numbers() if one.id == "sorted-mnist-fixed")
    row = {"what": number.what, "ours": number.published, "published": number.published, "where": "", "unit": "%"}
    empty = {"panels": [], "findings": [], "notes": [], "commands": [], "numbers": {}}

    def of(size):
        scores = score_results({number.id: {"size": size, "compared": [row], **empty}})
        return next(one.status for one in scores if one.number == number)

    assert (of("quick"), of("middle"), of("full")) == (NOT_RUN, NOT_RUN, MET)


def test_every_number_that_a_shipped_result_compares_is_on_the_list():
    listed = {(name, one.published) for one in published_numbers() for name in (one.id, *one.also)}
    # Later papers are beside the five sources, and print no number that is compared.
    of_sources = {one.id for one in experiments().values() if one.source in SOURCES}
    for path in sorted(result_store.SHIPPED.glob("*.json")):
        kept = json.loads(path.read_text("utf-8"))
        for row in kept["compared"] if kept["id"] in of_sources else []:
            assert (kept["id"], row["published"]) in listed, (kept["id"], row["what"])


def test_only_numbers_of_the_five_sources_count():
    assert {experiments()[one.id].source for one in published_numbers()} <= set(SOURCES)


def test_what_a_source_prints_twice_counts_once():
    # A row of a table and the training that is compared with it, whichever tables print the row.
    bench = Workbench(ExperimentSize.FULL, result_store.SHIPPED, trains=False)
    rows = {
        (digest(plan.settings(ExperimentSize.FULL, 0)), field, table.published[plan.label][k]): (
            f"{field}, {plan.label}"
        )
        for table in {**sorted_lots.TABLES, **projected_updates.TABLES}.values()
        for plan in table.plans(bench)
        for k, field in enumerate(("loss", "accuracy"))
        if plan.label in table.published
    }
    listed = Counter((one.what, one.published) for one in published_numbers())
    wanted = Counter((what, published) for (_, _, published), what in rows.items())
    assert {key: count for key, count in listed.items() if key in wanted} == dict(wanted)
    # The same accuracy is compared with two readings of one sentence.
    assert [one.id for one in published_numbers() if one.published == 97.39] == ["wd-mnist-decay"]


def test_every_number_of_the_list_is_of_an_id_and_has_a_place():
    assert len(published_numbers()) >= 150
    for one in published_numbers():
        assert one.id in experiments()
        assert one.where


def test_every_miss_has_a_reason_and_every_reason_a_miss():
    scores = score_results(result_store.read_results(result_store.SHIPPED))
    missed = {(one.number.id, one.number.what) for one in scores if one.status == MISSED}
    assert set(REASONS) == missed
    assert write_summary(scores) in write_table(scores)
    assert ExperimentSize.FULL.value == "full"


def test_recipes_say_what_the_lab_measured(capsys):
    assert main(["recipes"]) == 0
    said = capsys.readouterr().out
    scores = score_results(result_store.read_results(result_store.SHIPPED))
    tables = [
        one for one in scores if one.number.id in ("sorted-mnist-fixed", "sorted-mnist-median", "mnist-clip-search")
    ]
    met = sum(one.status == MET for one in tables)
    (line,) = [line for line in said.splitlines() if "sorted-mnist-fixed" in line]
    assert line.startswith("thesis-mnist")
    assert f"{len(tables)} published numbers" in line
    assert f"{met} met" in line


def test_shipped_results_are_in_line_with_the_code():
    for path in sorted(result_store.SHIPPED.glob("*.json")):
        kept = json.loads(path.read_text("utf-8"))
        assert bring_in_line(experiments()[kept["id"]], kept) == kept, path.name


def test_a_refreshed_result_that_only_took_another_time_is_not_written_anew(tmp_path):
    kept = json.loads((result_store.SHIPPED / "game.json").read_text("utf-8"))
    path = tmp_path / "game.json"
    path.write_text(json.dumps(kept), "utf-8")
    before = path.read_bytes()
    write_if_changed(path, {**kept, "seconds": kept["seconds"] + 0.3})
    assert path.read_bytes() == before
    write_if_changed(path, {**kept, "title": "another"})
    assert json.loads(path.read_text("utf-8"))["title"] == "another"
