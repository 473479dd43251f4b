"""Runs on a user's own data: what they train on, what they claim, and that they survive being killed."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from PIL import Image

import sordino
from bench.resilience import are_same
from sordino.app.cli.main import main
from sordino.app.runs.declared_file import OwnFile
from sordino.app.runs.fit import resume
from sordino.app.runs.run_data import HELD_OUT, TESTED
from sordino.events import Gaussian, Together
from sordino.ledger.claims import Guarantee
from sordino.refusal import Refusal
from tests.runs.cut_off import Crash, CrashesAt

TINY = {"epsilon": 3.0, "steps": 12, "rate": 0.2, "seed": 5, "checkpoint_every": 4, "evaluate_every": 6}


@pytest.fixture
def people(tmp_path):
    """Age and sex, of which income follows; 400 people."""
    rng = np.random.default_rng(0)
    age, sex = rng.integers(18, 90, 400), rng.choice(["F", "M"], 400)
    rich = np.where(age + 20 * (sex == "M") + rng.normal(0, 5, 400) > 60, "yes", "no")
    path = tmp_path / "people.csv"
    path.write_text("age,sex,income\n" + "".join(f"{a},{s},{r}\n" for a, s, r in zip(age, sex, rich, strict=True)))
    return path


def command(*arguments):
    words = [sys.executable, "-m", "sordino.app.cli.main", *map(str, arguments)]
    return subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_what_was_read_off_the_records_is_named_in_the_claim(people, tmp_path):
    own = OwnFile(path=str(people), target="income")
    claim = sordino.fit("linear", own, out=tmp_path / "run", **TINY).claim
    said = "; ".join(claim.not_covered)
    assert "dataset size" in said
    assert "which columns are numbers: age, sex" in said
    assert "which categories there are in sex" in said
    assert "which classes there are" in said
    assert HELD_OUT in claim.not_covered
    assert isinstance(claim.event, Together)
    assert claim.event.events[0] == Gaussian(20.0)  # the bounds of age, in the same ledger
    assert claim.epsilon <= 3.0


def test_what_was_declared_is_neither_named_nor_paid_for(people, tmp_path):
    own = OwnFile(
        path=str(people),
        target="income",
        bounds={"age": (0, 100)},
        categories={"sex": ("F", "M")},
        classes=("no", "yes"),
    )
    history = sordino.fit("linear", own, out=tmp_path / "run", **TINY)
    assert not any("read off" in name for name in history.claim.not_covered)
    assert Gaussian(20.0) not in getattr(history.claim.event, "events", ())
    kept = json.loads((tmp_path / "run" / "privacy.json").read_text())
    assert kept["claim"]["not_covered"] == list(history.claim.not_covered)


def test_it_learns(people, tmp_path):
    own = OwnFile(path=str(people), target="income", bounds={"age": (0, 100)})
    history = sordino.fit("linear", own, out=tmp_path / "run", epsilon=8.0, rate=0.2, steps=100, learning_rate=0.1)
    assert history.test_accuracy > 0.75  # the larger class is 56 %


@pytest.mark.parametrize("model", ["linear", "mlp"])
def test_a_run_on_a_table_resumes_bit_equal(people, tmp_path, model):
    own, more = OwnFile(path=str(people), target="income"), {"normalise": 30.0}
    sordino.fit(model, own, out=tmp_path / "whole", **TINY, **more)
    for step in (1, 7):
        with pytest.raises(Crash):
            sordino.fit(model, own, out=tmp_path / f"cut-{step}", view=CrashesAt(step), **TINY, **more)
        resume(tmp_path / f"cut-{step}")
        assert all(are_same(tmp_path / "whole", tmp_path / f"cut-{step}").values())


@pytest.mark.slow
def test_killed_and_resumed_by_command_with_a_report_at_the_end(people, tmp_path):
    run = tmp_path / "run"
    flags = ["--data", people, "--target", "income", "--epsilon", 3, "--steps", 200, "--checkpoint-every", 20]
    began = command("train", *flags, "--out", run)
    while not list((run / "checkpoints").glob("*20")) and began.poll() is None:
        time.sleep(0.02)
    os.kill(began.pid, signal.SIGKILL)
    began.communicate()
    assert not (run / "report.html").exists()
    rest = command("resume", run)
    said, _ = rest.communicate()
    assert rest.returncode == 0, said
    assert "which classes there are, read off the data" in said
    assert "which classes there are, read off the data" in (run / "PRIVACY.md").read_text()
    assert (run / "report.html").exists()


def test_the_configuration_of_a_run_runs_again(people, tmp_path, capfd):
    own = OwnFile(path=str(people), target="income", categories={"sex": ("F", "M")}, drop=("age",))
    first = sordino.fit("mlp", own, out=tmp_path / "first", **TINY)
    config = tmp_path / "first" / "config.toml"
    assert main(["train", "--config", str(config), "--no-report", "--out", str(tmp_path / "again")]) == 0
    assert all(are_same(first.run, tmp_path / "again").values())
    assert str(first.claim) in capfd.readouterr().out


def test_bounds_that_cost_more_than_all_are_refused(people, tmp_path):
    with pytest.raises(ValueError, match="give it more noise"):
        sordino.fit(
            "linear", OwnFile(path=str(people), target="income"), out=tmp_path / "r", **{**TINY, "epsilon": 0.1}
        )


def test_other_records_are_not_the_run_s(people, tmp_path):
    own = OwnFile(path=str(people), target="income")
    with pytest.raises(Crash):
        sordino.fit("linear", own, out=tmp_path / "run", view=CrashesAt(5), **TINY)
    people.write_text(people.read_text().replace("\n", "\n44,F,yes\n", 1))
    with pytest.raises(ValueError, match="the run began with"):
        resume(tmp_path / "run")


def test_a_model_of_the_user_s_own_file(people, tmp_path):
    net = tmp_path / "net.py"
    net.write_text("from torch import nn\ndef build(shape, classes):\n    return nn.Linear(shape[0], classes)\n")
    own = OwnFile(path=str(people), target="income")
    with pytest.raises(Crash):
        sordino.fit(f"{net}:build", own, out=tmp_path / "run", view=CrashesAt(5), **TINY)
    net.write_text(net.read_text() + "\n")
    with pytest.raises(ValueError, match="not what the run began with"):
        resume(tmp_path / "run")
    net.write_text(net.read_text()[:-1])
    assert resume(tmp_path / "run").finished


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("def build(", "cannot be run"),
        ("build = 3", "has no function 'build'"),
        ("def build(shape, classes):\n    return shape[9]", "failed"),
        ("def build(shape, classes):\n    return 3", "gave a int; need a torch.nn.Module"),
    ],
)
def test_a_model_file_that_does_not_work(people, tmp_path, source, message):
    (tmp_path / "net.py").write_text(source)
    with pytest.raises(ValueError, match=message):
        sordino.fit(
            f"{tmp_path / 'net.py'}:build", OwnFile(path=str(people), target="income"), **TINY, out=tmp_path / "r"
        )


def test_numbers_are_learnt_within_their_bounds(people, tmp_path):
    own = OwnFile(path=str(people), target="age", bounds={"age": (0, 100)})
    history = sordino.fit("linear", own, loss="squared", out=tmp_path / "run", **TINY)
    assert history.test_accuracy is None
    assert history.test_loss < 0.5 * 4  # targets lie in [−1, 1]


def test_a_test_file_has_the_scheme_of_the_training_file(people, tmp_path):
    (tmp_path / "test.csv").write_text("income,sex,age\nyes,M,80\nno,X,20\n")  # another order, a name that is new
    own = OwnFile(path=str(people), target="income", test=str(tmp_path / "test.csv"))
    history = sordino.fit("linear", own, out=tmp_path / "run", **TINY)
    assert TESTED in history.claim.not_covered
    assert history.test_accuracy in (0.0, 0.5, 1.0)


def test_images_by_class(tmp_path):
    rng = np.random.default_rng(0)
    for kind, light in (("dark", 40), ("bright", 200)):
        (tmp_path / "pictures" / kind).mkdir(parents=True)
        for k in range(60):
            pixels = rng.normal(light, 20, (8, 8)).clip(0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(tmp_path / "pictures" / kind / f"{k}.png")
    own = OwnFile(path=str(tmp_path / "pictures"))
    history = sordino.fit("cnn", own, out=tmp_path / "run", **{**TINY, "epsilon": 50.0})
    assert isinstance(history.claim, Guarantee)
    assert any("size and colours of the images" in name for name in history.claim.not_covered)


REVIEWS = [{"review": f"{mood} film number {k}", "mood": mood} for k in range(90) for mood in ("good", "awful")]


@pytest.mark.parametrize("ending", ["jsonl", "csv", "tsv", "parquet"])
def test_texts_by_words(tmp_path, ending):
    path = tmp_path / f"reviews.{ending}"
    if ending == "jsonl":
        path.write_text("\n".join(map(json.dumps, REVIEWS)))
    elif ending == "parquet":
        parquet, pyarrow = pytest.importorskip("pyarrow.parquet"), pytest.importorskip("pyarrow")
        parquet.write_table(pyarrow.Table.from_pylist(REVIEWS), path)
    else:
        by = "," if ending == "csv" else "\t"
        path.write_text("\n".join([by.join(REVIEWS[0]), *(by.join(one.values()) for one in REVIEWS)]))
    own = OwnFile(path=str(path), target="mood", text="review", classes=("good", "awful"))
    history = sordino.fit("words", own, out=tmp_path / "run", **{**TINY, "learning_rate": 0.1, "epsilon": 20.0})
    assert history.test_accuracy > 0.9
    assert not any("read off" in name for name in history.claim.not_covered)


def test_arrays(tmp_path):
    x = np.random.default_rng(0).normal(size=(200, 5)).astype(np.float32)
    np.savez(tmp_path / "a.npz", x=x, y=(x[:, 0] > 0).astype(np.int64))
    history = sordino.fit("mlp", OwnFile(path=str(tmp_path / "a.npz")), out=tmp_path / "run", **TINY)
    assert isinstance(history.claim, Guarantee)
    pictures = (x[:, :4].reshape(200, 2, 2) > 0).astype(np.uint8) * 255
    np.savez(tmp_path / "b.npz", x=pictures, y=(x[:, 0] > 0).astype(np.int64))
    history = sordino.fit("linear", OwnFile(path=str(tmp_path / "b.npz")), out=tmp_path / "run-b", **TINY)
    assert Gaussian(20.0) not in getattr(history.claim.event, "events", ())  # bytes have bounds


def pairs(n=200):
    x = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
    return torch.utils.data.TensorDataset(x, (x[:, 0] > 0).long())


def test_a_model_and_a_dataset_in_memory(tmp_path):
    model = torch.nn.Linear(3, 2)
    history = sordino.fit(model, pairs(), out=tmp_path / "run", **TINY)
    assert history.model is model
    assert isinstance(history.claim, Guarantee)
    assert HELD_OUT in history.claim.not_covered
    again = sordino.fit(torch.nn.Linear(3, 2), list(pairs()), test=pairs(20), out=tmp_path / "again", **TINY)
    assert TESTED in again.claim.not_covered


def test_a_run_in_memory_resumes_with_what_it_was_given(tmp_path):
    def model():
        torch.manual_seed(0)
        return torch.nn.Linear(3, 2)

    sordino.fit(model(), pairs(), out=tmp_path / "whole", **TINY)
    with pytest.raises(Crash):
        sordino.fit(model(), pairs(), out=tmp_path / "cut", view=CrashesAt(7), **TINY)
    with pytest.raises(ValueError, match="are in no file"):
        resume(tmp_path / "cut")
    resume(tmp_path / "cut", model=model(), data=pairs())
    assert all(are_same(tmp_path / "whole", tmp_path / "cut").values())


@pytest.mark.parametrize(
    ("model", "data", "message"),
    [
        (torch.nn.Linear(3, 1), pairs(), "a label beyond the model's 1 outputs"),
        (torch.nn.Linear(4, 2), pairs(), "does not take the records"),
        (torch.nn.Linear(3, 2), torch.utils.data.TensorDataset(torch.zeros(5, 3)), "1 columns"),
        (torch.nn.Linear(3, 2), [(torch.zeros(3), 1), (torch.zeros(4), 0)], "all x of one shape"),
        (torch.nn.Flatten(0), pairs(), "a row of numbers for each record"),
    ],
)
def test_models_and_data_that_do_not_fit(tmp_path, model, data, message):
    with pytest.raises(Refusal, match=message):
        sordino.fit(model, data, out=tmp_path / "run", **TINY)


@pytest.mark.slow
def test_adult_as_a_csv_by_one_command_in_under_a_minute(tmp_path):
    from sordino.app.data.files import files_folder

    source = files_folder("adult")
    names = [line.partition(":")[0] for line in (source / "adult.names").read_text().splitlines() if ":" in line[:20]]
    names = [name for name in names if name and not name.startswith("|") and " " not in name]
    rows = [line for line in (source / "adult.data").read_text().splitlines() if line.strip()]
    (tmp_path / "adult.csv").write_text("\n".join([",".join([*names, "income"]), *rows]))
    began = command(
        "train", "--data", tmp_path / "adult.csv", "--target", "income", "--epsilon", 3, "--out", tmp_path / "run"
    )
    said, _ = began.communicate()
    assert began.returncode == 0, said
    found = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert found["test_accuracy"] > 0.845
    assert found["seconds"] < 60
    assert (tmp_path / "run" / "report.html").exists()
