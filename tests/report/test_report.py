"""Reports of real runs: what is claimed, in words and figures; and nothing of it where there is no guarantee."""

import json
import re
import shutil

import pytest

import sordino as sd
from sordino.accounting import PLD
from sordino.app.cli.main import main
from sordino.app.report import Statement, read, write
from sordino.app.runs.directory import PRIVACY
from sordino.app.runs.job import TRAINING_EVALUATED, TRAINING_LOSS
from sordino.ledger.claims import BY_THE_RATE, DATASET_SIZE, SEED, round_up
from tests.browser import ACCESSIBLE, DESKTOP, PHONE, opened, page
from tests.runs.cut_off import TINY, crashed


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    sd.fit("spiral", steps=40, records=500, epsilon=2.0, out=folder / "private")
    sd.fit("spiral", steps=40, records=500, non_private=True, out=folder / "plain")
    for name in ("private", "plain"):
        write(folder / name)
    return folder


@pytest.fixture
def copied(runs, tmp_path):
    def copy(name):
        return shutil.copytree(runs / name, tmp_path / name)

    return copy


def text_of(html):
    return re.sub(r"<style>.*?</style>|<[^>]+>", " ", html, flags=re.DOTALL)


def test_the_loop_writes_no_report_and_the_command_does(tmp_path):
    tiny = {"steps": 3, "records": 100}
    sd.fit("spiral", out=tmp_path / "fit", **tiny)
    flags = [text for name, value in tiny.items() for text in (f"--{name}", str(value))]
    assert main(["train", "spiral", *flags, "--out", str(tmp_path / "train")]) == 0
    assert main(["train", "spiral", *flags, "--no-report", "--out", str(tmp_path / "without")]) == 0
    found = {name: (tmp_path / name / "report.html").exists() for name in ("fit", "train", "without")}
    assert found == {"fit": False, "train": True, "without": False}


@pytest.mark.parametrize(
    ("line", "flags", "written"),
    [
        ("report = false", [], False),
        ("report = false", ["--report"], True),
        ("report = true", ["--no-report"], False),
        ("report = true", [], True),
        ("", [], True),
    ],
)
def test_a_flag_for_the_report_wins_over_the_file(tmp_path, line, flags, written):
    config, out = tmp_path / "c.toml", tmp_path / "run"
    config.write_text(f'name = "spiral"\nsteps = 3\nrecords = 100\n{line}\n')
    assert main(["train", "--config", str(config), "--out", str(out), *flags]) == 0
    assert (out / "report.html").exists() == written


def test_a_yes_or_no_flag_wins_over_the_file(tmp_path):
    config = tmp_path / "c.toml"
    config.write_text('name = "spiral"\nsteps = 3\nrecords = 100\ntrace = true\nreport = false\n')
    for flags, kept in (([], True), (["--no-trace"], False)):
        out = tmp_path / f"kept-{kept}"
        assert main(["train", "--config", str(config), "--out", str(out), *flags]) == 0
        assert (out / "trace").exists() == kept


def test_a_resumed_run_writes_a_report_unless_its_file_or_a_flag_says_no(tmp_path):
    sd.fit("spiral", steps=3, records=100, out=tmp_path)
    config = tmp_path / "config.toml"
    config.write_text(config.read_text().replace("[options]", "[options]\nreport = false"))
    for flags, written in (([], False), (["--no-report"], False), (["--report"], True)):
        assert main(["resume", str(tmp_path), *flags]) == 0
        assert (tmp_path / "report.html").exists() == written


def test_a_killed_run_says_what_its_claim_will_not_cover(tmp_path):
    given = {"seed": 1, "show_private": True, "rate": 16 / 301, "records": 301}
    crashed(tmp_path / "killed", 7, **given)
    whole = sd.fit("spiral", out=tmp_path / "whole", **{**TINY, **given}).claim
    left = read(tmp_path / "killed").guarantee
    assert left.not_covered == whole.not_covered
    assert {SEED, DATASET_SIZE, BY_THE_RATE, TRAINING_LOSS, TRAINING_EVALUATED} == set(left.not_covered)
    write(tmp_path / "killed")
    page, text = (tmp_path / "killed" / "report.html").read_text(), (tmp_path / "killed" / "PRIVACY.md").read_text()
    for name in left.not_covered:
        assert name in text
        assert name[1:] in text_of(page)


def test_what_a_claim_rests_on_is_printed_and_goes_through_the_files(tmp_path, capsys):
    assert main(["train", "spiral", "--steps", "3", "--records", "100", "--out", str(tmp_path)]) == 0
    line = "3 of 3 lots replayed with a record exchanged"
    assert f"rests on     {line}" in capsys.readouterr().out
    rests_on = read(tmp_path).guarantee.rests_on
    assert rests_on[0] == line
    assert rests_on[-1].startswith("your word: initial weights are public")
    assert json.loads((tmp_path / PRIVACY).read_text())["words"] == str(read(tmp_path).claim)
    for name in ("report.html", "PRIVACY.md"):
        said = (tmp_path / name).read_text()
        assert "What it rests on" in said
        assert said.count(line) == 2  # there, and in the statement


def test_a_claim_whose_words_are_no_list_of_text_is_refused(copied):
    for damage in ("text", [1], None):
        folder = copied("private")
        said = json.loads((folder / PRIVACY).read_text())
        said["claim"]["rests_on"] = damage
        (folder / PRIVACY).write_text(json.dumps(said))
        with pytest.raises(ValueError, match="its claim is not one that a run makes"):
            read(folder)
        shutil.rmtree(folder)


def test_a_report_is_two_files(runs):
    for name in ("private", "plain"):
        assert (runs / name / "report.html").stat().st_size > 5000
        assert (runs / name / "PRIVACY.md").stat().st_size > 300


def test_the_report_says_the_claim_of_the_run(runs):
    said = json.loads((runs / "private" / PRIVACY).read_text())["claim"]
    html = text_of((runs / "private" / "report.html").read_text())
    shown = round_up(said["epsilon"])
    assert f"ε = {shown}" in re.sub(r"\s+", " ", html)
    assert f"(ε = {shown}, δ = 1e-05)-differential privacy" in (runs / "private" / "PRIVACY.md").read_text()
    assert "Poisson(" in html


def test_without_a_guarantee_no_epsilon_is_anywhere_and_the_reason_is(runs):
    html, text = ((runs / "plain" / name).read_text() for name in ("report.html", "PRIVACY.md"))
    reason = json.loads((runs / "plain" / PRIVACY).read_text())["claim"]["reason"]
    for said in (text_of(html), text):
        assert "ε" not in said
        assert "epsilon" not in said.lower()
        assert "budget" not in said
        assert reason.split(";")[0][:60] in re.sub(r"\s+", " ", said).replace("&#39;", "'")
    assert "ε" not in html


def test_the_page_is_one_file_that_loads_nothing(runs):
    html = (runs / "private" / "report.html").read_text()
    assert not re.search(r"<script|<link|@import|src=", html)
    addresses = set(re.findall(r"(?:href|url)\W{1,3}((?:https?:)?//[^\"')]+)", html))
    assert addresses <= {"http://www.w3.org/1999/xlink"}


def test_what_only_people_know_is_asked_kept_and_escaped(copied, capsys):
    folder = copied("private")
    assert text_of((folder / "report.html").read_text()).count("not stated") == 4
    assert main(["report", str(folder), "--unit", "one <b>visit</b> | of", "--json"]) == 0
    paths = json.loads(capsys.readouterr().out)
    html = (folder / "report.html").read_text()
    names = {"report": "report.html", "privacy": "PRIVACY.md", "card": "MODEL_CARD.md"}
    assert paths == {name: str(folder / file) for name, file in names.items()}
    assert "one &lt;b&gt;visit&lt;/b&gt; | of" in html
    assert "<b>visit" not in (folder / "PRIVACY.md").read_text()
    assert "one &lt;b&gt;visit&lt;/b&gt; \\| of" in (folder / "PRIVACY.md").read_text()
    write(folder, Statement(tuning="none"))  # and the unit is still there
    assert "visit" in (folder / "report.html").read_text()
    assert text_of((folder / "report.html").read_text()).count("not stated") == 2


def test_an_epsilon_below_what_its_event_costs_is_refused(copied):
    folder = copied("private")
    said = json.loads((folder / PRIVACY).read_text())
    least, _ = PLD().bounds(read(folder).guarantee.event, 1e-5)
    said["claim"]["epsilon"] = least * 0.999
    (folder / PRIVACY).write_text(json.dumps(said))
    with pytest.raises(ValueError, match="costs at least"):
        write(folder)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("privacy.json", "{", "privacy.json: not as a run writes it"),
        ("privacy.json", "[]", "need a table"),
        ("privacy.json", "{}", "has no claim"),
        ("privacy.json", '{"claim": {"epsilon": 1}}', "not one that a run makes"),
        ("config.toml", "= 3", "config.toml: not as a run writes it"),
        ("metrics.jsonl", '{"step": 1}\n', "metrics.jsonl"),
        ("statement.json", '{"unit": 3}', "statement.json"),
        ("statement.json", '{"more": "x"}', "statement.json"),
    ],
)
def test_a_damaged_file_is_one_line_and_exit_code_2(copied, capsys, name, content, message):
    folder = copied("private")
    (folder / name).write_text(content)
    assert main(["report", str(folder)]) == 2
    err = capsys.readouterr().err
    assert message in err
    assert err.count("\n") == 1


def test_a_folder_that_is_no_run_is_one_line_and_exit_code_2(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "not a run directory" in capsys.readouterr().err


def test_an_unfinished_run_says_how_many_steps_its_claim_speaks_about(copied):
    folder = copied("private")
    said = json.loads((folder / PRIVACY).read_text())
    (folder / PRIVACY).write_text(json.dumps({**said, "status": "running"}))
    write(folder)
    assert "has not finished" in (folder / "report.html").read_text()
    assert "speaks about 40 steps" in (folder / "PRIVACY.md").read_text()


@pytest.fixture(scope="module")
def browser():
    with opened() as running:
        yield running


@pytest.mark.parametrize("name", ["private", "plain"])
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [DESKTOP, PHONE], ids=["desktop", "phone"])
def test_it_is_labelled_readable_and_fits(browser, runs, name, size, scheme):
    with page(browser, size, scheme) as view:
        asked = []
        view.on("request", lambda request: asked.append(request.url))
        view.goto((runs / name / "report.html").as_uri())
        assert view.evaluate(ACCESSIBLE) == []
        assert len(asked) == 1
        assert view.locator("figure svg").count() == (3 if name == "private" else 1)
