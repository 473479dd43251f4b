"""Variants of one's own beside the published ones: a clipping rule from a file, and an experiment from a file."""

import json
import re
from pathlib import Path

import pytest
from sordino_lab import training_store
from sordino_lab.catalogue import find_experiment
from sordino_lab.command import Command
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import ExperimentSize

import sordino as sd
from sordino.app.cli.main import main

PAGE = Path(__file__).parents[2] / "docs" / "how_to" / "own_variants.md"


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The two files of the page, in the folder where its commands are typed."""
    for name, code in re.findall(r'```python title="(.*?)"\n(.*?)```', PAGE.read_text("utf-8"), re.DOTALL):
        (tmp_path / name).write_text(code, "utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))
    return tmp_path


SHORT = ["--steps", "6", "--records", "300", "--evaluate-every", "3", "--seed", "1", "--no-report", "--json"]


def test_an_own_clipping_rule_trains_and_has_a_claim(folder, capsys):
    for flag, out in (("--clipping", "one"), ("--weigher", "two")):
        assert main(["train", "spiral", flag, "rules.py:Smooth", "--out", out, *SHORT]) == 0
    rows = [(folder / out / "metrics.jsonl").read_text().splitlines()[-1] for out in ("one", "two")]
    accuracies = [json.loads(row)["test_loss"] for row in rows]
    assert accuracies[0] == accuracies[1]
    claim = json.loads((folder / "one" / "privacy.json").read_text())["claim"]
    assert claim["epsilon"] > 0
    assert "Smooth(bound=" in (folder / "one" / "config.toml").read_text()


def test_parameters_of_an_own_rule_are_given_by_name(folder):
    losses = set()
    for sharpness in (1.0, 8.0):
        history = sd.fit(
            "spiral", weigher="rules.py:Smooth", parameters={"sharpness": sharpness}, steps=6, records=300, seed=1
        )
        losses.add(history.test_loss)
    assert len(losses) == 2
    with pytest.raises(ValueError, match="there is sharpness"):
        sd.fit("spiral", weigher="rules.py:Smooth", parameters={"softness": 1.0}, steps=2, records=300)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1 / 0", "cannot be run"),
        ("Smooth = 3", "defines no class or function"),
        ("def Smooth(bound): return object()", "without init, rule, advance"),
        ("def Smooth(bound, other): return None", "needs a number as default"),
        ("def Smooth(bound): raise KeyError('no')", "failed"),
    ],
)
def test_a_file_that_gives_no_rule_is_refused_with_its_name(folder, code, message):
    (folder / "rules.py").write_text(code)
    with pytest.raises(ValueError, match=message):
        sd.fit("spiral", weigher="rules.py:Smooth", steps=2, records=300)


def test_a_file_that_is_not_there_is_refused(folder):
    with pytest.raises(ValueError, match=r"need FILE\.py:NAME"):
        sd.fit("spiral", weigher="nowhere.py:Smooth", steps=2, records=300)


def test_an_own_experiment_is_run_drawn_and_kept(folder, capsys):
    one = find_experiment("smooth.py")
    assert (one.id, one.source) == ("smooth-clipping", "own")
    assert main(["lab", "run", "smooth.py", "--quick", "--processes", "1"]) == 0
    result = json.loads((folder / "lab" / "smooth-clipping.json").read_text())
    assert [line["label"] for line in result["panels"][0]["series"]] == ["flat", "smooth"]
    assert any("rules.py:Smooth" in command for command in result["commands"])
    assert (folder / "lab" / "smooth-clipping.png").stat().st_size > 1000
    # A smaller size says so, and judges nothing.
    assert result["note"].startswith("reduced (quick)")
    assert [finding["holds"] for finding in result["findings"]] == [None]
    # The lab then knows the result by its id and by its file, and the page has it.
    capsys.readouterr()
    for name in ("smooth-clipping", "smooth.py"):
        assert main(["lab", "check", name]) == 0
        assert "clipping without a kink is better" in capsys.readouterr().out
    assert main(["lab", "show", "smooth.py"]) == 0
    assert "rules.py:Smooth" in capsys.readouterr().out
    assert main(["lab", "page", "--no-browser"]) == 0
    page = (folder / "lab" / "index.html").read_text()
    card = page[page.index('id="smooth-clipping"') :]
    assert "Clipping without a kink (reduced)" in card[: card.index("</section>")]
    assert "Experiments of your own" in page


def final_losses(folder):
    result = json.loads((folder / "lab" / "smooth-clipping.json").read_text())
    return [line["y"][-1] for line in result["panels"][1]["series"]]


@pytest.fixture
def runs_the_lab(folder, monkeypatch):
    """Runs the page's experiment at the smallest size and returns the final losses of both curves."""
    monkeypatch.setattr(Command, "_size", ExperimentSize.TINY)

    def run():
        assert main(["lab", "run", "smooth.py", "--processes", "1"]) == 0
        return final_losses(folder)

    return run


def test_a_rule_that_was_edited_is_trained_anew(folder, runs_the_lab):
    flat, smooth = runs_the_lab()
    rules = folder / "rules.py"
    rules.write_text(rules.read_text().replace("return (self.bound", "return 0.01 * (self.bound"))
    again = runs_the_lab()
    assert again[0] == flat
    assert again[1] != smooth


def test_a_rule_that_is_edited_while_it_trains_is_not_taken_for_the_new_one(folder, tmp_path, monkeypatch):
    plan = CurvePlan(
        label="x", method="own", recipe="spiral", given={"weigher": f"{(folder / 'rules.py').absolute()}:Smooth"}
    )
    settings = plan.settings(ExperimentSize.TINY, 0)
    carry_out = training_store._train_or_resume

    def edit_meanwhile(*given):
        kept = carry_out(*given)
        (folder / "rules.py").write_text((folder / "rules.py").read_text() + "\n# edited\n")
        return kept

    monkeypatch.setattr(training_store, "_train_or_resume", edit_meanwhile)
    training_store.train(settings, tmp_path)
    assert not training_store.is_known(settings, tmp_path)


def test_an_experiment_that_was_edited_is_drawn_anew(folder, runs_the_lab):
    runs_the_lab()
    own = folder / "smooth.py"
    own.write_text(own.read_text().replace("Clipping without a kink", "Another title"))
    runs_the_lab()
    assert json.loads((folder / "lab" / "smooth-clipping.json").read_text())["title"] == "Another title"


def test_an_own_experiment_that_was_not_run_is_named_by_its_file(folder, capsys):
    assert main(["lab", "check", "smooth.py"]) != 0
    assert "`sordino lab run smooth.py --quick`" in capsys.readouterr().err


def test_a_file_without_an_experiment_is_refused(folder):
    with pytest.raises(ValueError, match="defines no experiment"):
        find_experiment("rules.py")
    with pytest.raises(ValueError, match="no such file"):
        find_experiment("nowhere.py")
