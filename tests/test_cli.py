"""The command as a person runs it: real processes, output and exit codes."""

import json
import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import pytest

import sordino
from sordino.app.cli.flags import read_field_docs
from sordino.app.cli.main import main
from sordino.app.cli.train import Command
from sordino.app.runs import Recipe
from sordino.app.runs.recipe import FIELDS, MEASURED, SETTING_RECORDS
from sordino.app.runs.settings import Options
from sordino.rng.keystream import describe_status

COMMAND = [sys.executable, "-m", "sordino.app.cli.main"]
SMALL = ("train", "spiral", "--steps", "20", "--records", "500", "--evaluate-every", "10")


def run(*arguments: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False, cwd=cwd)


def test_training_ends_with_a_claim_and_a_run_directory(tmp_path):
    done = run(*SMALL, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "step 20/20  epoch   1.0  ε " in done.stdout
    assert "(3.000, 1e-05)-differential privacy" in done.stdout
    assert "not covered  dataset size" in done.stdout
    (made,) = (tmp_path / "runs").iterdir()
    assert made.name.startswith("spiral-")
    assert {"config.toml", "metrics.jsonl", "privacy.json", "initial.safetensors", "model.safetensors"} <= {
        path.name for path in made.iterdir()
    }


def test_json_is_one_object_on_the_last_line(tmp_path):
    done = run(*SMALL, "--json", "--out", str(tmp_path / "run"))
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["claim"]["epsilon"] > 0
    assert 0 <= result["test_accuracy"] <= 1
    assert result["run"] == str(tmp_path / "run")
    assert sordino.events.from_json(result["claim"]["event"]).count == 20


@pytest.mark.parametrize("how", [("--noise-multiplier", "0"), ("--non-private",)])
def test_no_noise_no_epsilon(how, tmp_path):
    done = run(*SMALL, *how, "--json", "--out", str(tmp_path / "run"))
    assert set(json.loads(done.stdout)["claim"]) == {"reason"}
    rows = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [row["epsilon"] for row in rows] == [None, None]
    assert "epsilon" not in json.loads((tmp_path / "run" / "privacy.json").read_text())["claim"]


def test_every_field_has_its_flag():
    there = {*FIELDS, *(field.name for field in fields(Options))}
    others = {"seeds", "budget"}  # flags of the command itself: a number of runs, and a file
    assert there - {field.name for field in fields(Command)} == {*MEASURED, "budget"} - others
    said = {name: text for kind in (Recipe, *SETTING_RECORDS, Options) for name, text in read_field_docs(kind).items()}
    assert all(said.get(name) for name in there if name not in MEASURED)


def test_help_and_version():
    assert "train" in run("--help").stdout
    assert run("--version").stdout == f"sordino {sordino.__version__} (noise: {describe_status()})\n"
    assert run().returncode == 2


def test_recipes_and_methods_are_listed():
    listed = json.loads(run("recipes", "--json").stdout)
    assert {"mnist", "spiral", "digits"} <= {recipe["name"] for recipe in listed}
    assert "not measured" in run("recipes").stdout
    assert "automatic" in json.loads(run("recipes", "--methods", "--json").stdout)


def test_ctrl_c_while_a_command_is_still_imported_prints_no_traceback(monkeypatch, capsys):
    class Interrupted:
        def __getattr__(self, name):
            raise KeyboardInterrupt

    monkeypatch.setitem(sys.modules, "sordino.app.cli.argument_parsing", Interrupted())
    assert main(["recipes"]) == 130
    assert capsys.readouterr().err == ""
