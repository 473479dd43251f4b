"""Reports of real runs: what is claimed, in words and figures; and nothing of it where there is no guarantee."""

import json
import re
import shutil

import pytest

import sordino as sd
from sordino.accounting import PLD
from sordino.cli.main import main
from sordino.door.claims import rounded_up
from sordino.report import Statement, read, write
from sordino.runs.directory import PRIVACY
from tests.browser import ACCESSIBLE, DESKTOP, PHONE, opened, page


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


def test_a_report_is_two_files(runs):
    for name in ("private", "plain"):
        assert (runs / name / "report.html").stat().st_size > 5000
        assert (runs / name / "PRIVACY.md").stat().st_size > 300


def test_the_report_says_the_claim_of_the_run(runs):
    said = json.loads((runs / "private" / PRIVACY).read_text())["claim"]
    html = text_of((runs / "private" / "report.html").read_text())
    shown = rounded_up(said["epsilon"])
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
    assert paths == {"report": str(folder / "report.html"), "privacy": str(folder / "PRIVACY.md")}
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
