"""The command as a person runs it: real processes, output and exit codes."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

import sordino

COMMAND = [str(Path(sys.executable).parent / "sordino")]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def test_training_ends_with_a_claim():
    done = run("train", "--steps", "40", "--records", "500")
    assert done.returncode == 0, done.stderr
    assert "lot    40/40  ε " in done.stdout
    assert "differential privacy" in done.stdout
    assert "not covered" not in done.stdout


def test_json_is_one_object_on_the_last_line():
    done = run("train", "--steps", "20", "--records", "500", "--json")
    result = json.loads(done.stdout)
    assert result["claim"]["epsilon"] > 0
    assert 0 <= result["test_accuracy"] <= 1
    assert sordino.events.from_json(result["claim"]["event"]).count == 20


def test_no_noise_no_epsilon():
    done = run("train", "--steps", "10", "--records", "500", "--multiplier", "0", "--json")
    claim = json.loads(done.stdout)["claim"]
    assert set(claim) == {"reason"}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train", "--rate", "2"], "must lie in (0, 1]"),
        (["train", "--bound", "-1"], "bound=-1.0"),
        (["train", "--steps", "0"], "steps=0"),
        (["train", "--delta", "1.5"], "delta=1.5"),
        (["train", "--stepz", "3"], "stepz"),
        (["trian"], "no command 'trian'"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_2(arguments, message):
    done = run(*arguments)
    assert done.returncode == 2
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


def test_help_and_version():
    assert "train" in run("--help").stdout
    assert run("--version").stdout == f"sordino {sordino.__version__}\n"
    assert run().returncode == 2
