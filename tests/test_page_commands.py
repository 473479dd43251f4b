"""The commands of the pages run as they are written, on small files of the names that the pages use."""

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from sordino.accounting import Budget
from sordino.app.cli.main import main
from tests.test_docs import BLOCK

DOCS = Path(__file__).parents[1] / "docs"


def commands(page):
    text = (DOCS / page).read_text()
    console = [code for language, code in BLOCK.findall(text) if language == "console"]
    return [shlex.split(line) for code in console for line in re.findall(r"^\$ sordino (.+)$", code, re.MULTILINE)]


def people(path, rows=400):
    rng = np.random.default_rng(0)
    lines = [f"{a:.0f},{h:.0f},{'high' if a + h > 95 else 'low'}" for a, h in rng.uniform((18, 0), (90, 80), (rows, 2))]
    Path(path).write_text("\n".join(["age,hours,income", *lines]))


@pytest.fixture(autouse=True)
def _here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def test_the_commands_about_a_budget(capsys):
    people("people.csv")
    create, train, show = commands("tutorials/budget.md")
    assert main(create) == 0
    assert main([*train, "--steps", "10"]) == 0
    capsys.readouterr()
    assert main(show) == 0
    assert "in 1 runs" in capsys.readouterr().out


def test_a_run_that_does_not_fit_into_a_budget_is_refused_before_it_begins(capsys):
    people("people.csv")
    Budget.create("small.jsonl", epsilon=1.0, delta=1e-5)
    run = [
        "train",
        "--data",
        "people.csv",
        "--target",
        "income",
        "--epsilon",
        "2",
        "--budget",
        "small.jsonl",
        "--steps",
        "10",
    ]
    assert main([*run, "--out", "run"]) == 3
    assert "the limit is 1" in capsys.readouterr().err
    assert not Budget("small.jsonl").entries()
    assert not Path("run").exists()
    assert main(["train", "spiral", "--seeds", "2", "--budget", "small.jsonl"]) == 2
    none = [
        "train",
        "spiral",
        "--sampler",
        "sorted-top-k",
        "--steps",
        "2",
        "--records",
        "200",
        "--noise-multiplier",
        "1",
    ]
    assert main([*none, "--budget", "small.jsonl"]) == 2
    assert "cannot be entered in a budget" in capsys.readouterr().err


def test_the_commands_about_images_and_reports():
    from PIL import Image

    from sordino.app.data import digits

    drawn = digits(train=300, test=1).train
    for number, (picture, label) in enumerate(zip(drawn.images, drawn.labels, strict=True)):
        if label < 2:
            place = Path("pictures", ("zero", "one")[label])
            place.mkdir(parents=True, exist_ok=True)
            Image.fromarray(picture[0].numpy()).save(place / f"{number}.png")
    (on_a_folder,) = [words for words in commands("tutorials/images.md") if "--data" in words]
    assert main([*on_a_folder, "--steps", "3", "--out", "runs/mnist-3"]) == 0
    (stating,) = commands("tutorials/report.md")
    assert main(stating) == 0
    assert "one record is one picture by one writer" in Path("runs/mnist-3/report.html").read_text()


def test_a_reader_that_has_read_enough_is_no_error():
    code = "import sys; from sordino.app.cli.main import main; sys.exit(main(['account', '--help']))"
    run = subprocess.Popen([sys.executable, "-u", "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    run.stdout.readline()
    run.stdout.close()  # as head does
    said = run.stderr.read().decode()
    run.stderr.close()
    assert run.wait() in (0, 141)  # 0 where all of it went into the pipe before
    assert "Traceback" not in said
