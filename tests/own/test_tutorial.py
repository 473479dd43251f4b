"""The commands of the tutorial on own data run as they are written, one after the other, and print the claim it shows."""

import re
import shlex
from pathlib import Path

import pytest

from sordino.app.cli.main import main
from tests.test_docs import BLOCK, without_coins

PAGE = (Path(__file__).parents[2] / "docs" / "tutorials" / "own_data.md").read_text()


def test_the_commands_of_the_page(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    blocks = BLOCK.findall(PAGE)
    (files,) = [code for language, code in blocks if language == "py"]
    exec(compile(files, "own_data.md", "exec"), {})
    printed = []
    for language, code in blocks:
        for line in re.findall(r"^\$ sordino (.+)$", code, re.MULTILINE) if language == "console" else ():
            assert main(shlex.split(line)) == 0, line
            printed.append(capsys.readouterr().out)
    shown = next(code for language, code in blocks if language == "text")
    assert without_coins(shown.strip()) in without_coins(printed[0])
    assert "read off" not in printed[1]
    assert len(list(tmp_path.glob("runs/*/report.html"))) == len(printed)


@pytest.mark.parametrize("said", re.findall(r"^    sordino train: (.+)$", PAGE, re.MULTILINE))
def test_the_errors_of_the_page(said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    at = int(re.search(r"line (\d+)", said)[1])
    rows = ["age,hours,sex,income", *(f"{k},40,Male,low" for k in range(20, 80)), "44,3,Female,high"]
    rows[at - 1] = "31,40,low" if "cells" in said else "31,40,Mael,low"
    Path("people.csv").write_text("\n".join(rows))
    flags = ["--target", "income", "--epsilon", "3", "--categories", "sex=Female|Male"]
    assert main(["train", "--data", "people.csv", *flags]) == 2
    assert capsys.readouterr().err.strip() == f"sordino train: {said}"
