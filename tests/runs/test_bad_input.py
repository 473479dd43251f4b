"""Bad flags, files and data: one clear line and exit code 2, never a traceback."""

import os
import tempfile
from pathlib import Path

import pytest

import sordino
from sordino.app.cli.main import main

TINY = ("train", "spiral", "--steps", "5", "--records", "100", "--no-report")

FLAGS = {
    "no such command": (["trian"], "no command 'trian'"),
    "misspelt command": (["predcit"], "no command 'predcit'; did you mean 'predict'?; see `sordino --help`"),
    "misspelt recipe": (["train", "mnits"], "did you mean 'mnist'?"),
    "misspelt method": ([*TINY, "--method", "automatik"], "did you mean 'automatic'?"),
    "misspelt optimizer": ([*TINY, "--optimizer", "adma"], "did you mean 'adam'?"),
    "misspelt model": ([*TINY, "--model", "liner"], "did you mean 'linear'?"),
    "misspelt field of a grid": (["tune", "spiral", "--grid", "lerning_rate=1,2"], "did you mean 'learning_rate'?"),
    "an option nothing is like": ([*TINY, "--zzzzz"], "no option --zzzzz; see `sordino train --help`"),
    "rate and batch size": ([*TINY, "--rate", "0.1", "--batch-size", "20"], "batch_size=20 beside rate=0.1: give one"),
    "steps and epochs": ([*TINY, "--epochs", "3"], "epochs=3.0 beside steps=5: give one of the two"),
    "larger batch than there are records": (
        ["train", "spiral", "--records", "100", "--no-report", "--batch-size", "200"],
        "batch_size=200: must be at most the number of records, 100",
    ),
    "no epochs": (["train", "spiral", "--epochs", "0"], "epochs=0.0: must be > 0"),
    "no recipe": (["train"], "no recipe: name one"),
    "no such recipe": (["train", "mnits"], "recipe 'mnits': there is mnist"),
    "two recipes": (["train", "mnist", "cifar10"], "cifar10"),
    "misspelt flag": ([*TINY, "--stepz", "3"], "no option --stepz; did you mean --steps?; see `sordino train --help`"),
    "not a number": ([*TINY, "--bound", "abc"], "--bound 'abc': need a number; see"),
    "not a whole number": ([*TINY, "--steps", "2.5"], "--steps '2.5': need a whole number; see"),
    "value forgotten": ([*TINY, "--rate"], "--rate: needs a value; see"),
    "numbers forgotten": (
        ["account"],
        "sordino account: needs --rate, --multiplier and --steps; see `sordino account --help`",
    ),
    "arguments forgotten": (
        ["audit"],
        "sordino audit: needs {selftest,replay,run} and RUN; see `sordino audit --help`",
    ),
    "a word for a port": (["plan", "--port", "http"], "--port 'http': need a whole number; see"),
    "a word for a number": (
        ["account", "--rate", "x", "--sigma", "1", "--steps", "2"],
        "--rate 'x': need a number; see",
    ),
    "none of the actions": (["audit", "foo", "mnist"], "'foo': need one of selftest, replay, run; see"),
    "none of the samplings": (["account", "--sampling", "x"], "--sampling 'x': need one of poisson, shuffle, "),
    "rate above one": ([*TINY, "--rate", "2"], "rate=2.0: must lie in (0, 1]"),
    "negative bound": ([*TINY, "--bound", "-1"], "bound=-1.0: must be > 0"),
    "no steps": ([*TINY, "--steps", "0"], "steps=0: must be >= 1"),
    "delta above one": ([*TINY, "--delta", "1.5"], "delta=1.5: must lie strictly between 0 and 1"),
    "epsilon zero": ([*TINY, "--epsilon", "0"], "epsilon=0.0: must be > 0"),
    "epsilon not a number": ([*TINY, "--epsilon", "nan"], "epsilon=nan"),
    "both epsilon and noise": ([*TINY, "--epsilon", "1", "--noise-multiplier", "1"], "both given; need one"),
    "budget without epsilon": ([*TINY, "--budget-stop"], "budget_stop: needs the budget"),
    "no such method": ([*TINY, "--method", "dp-sdg"], "method='dp-sdg': there is dpsgd"),
    "no such sampler": ([*TINY, "--sampler", "pission"], "sampler='pission': there is poisson"),
    "sampler of a method that draws itself": ([*TINY, "--method", "dp-gd", "--sampler", "poisson"], "leave it out"),
    "another method's parameter": ([*TINY, "--parameter", "gamma=1"], "parameter 'gamma': not one of this method's"),
    "parameter without value": ([*TINY, "--parameter", "gamma"], "need name=number"),
    "epsilon without a proof": ([*TINY, "--method", "projected"], "no noise meets it"),
    "infinite learning rate": ([*TINY, "--learning-rate", "inf"], "learning_rate=inf: must be finite"),
    "no such optimizer": ([*TINY, "--optimizer", "sdg"], "optimizer='sdg': there is sgd"),
    "no such schedule": ([*TINY, "--schedule", "cos"], "schedule='cos': there is constant"),
    "momentum of one": ([*TINY, "--momentum", "1"], "momentum=1.0: must lie in [0, 1)"),
    "no such data set": ([*TINY, "--dataset", "mnits"], "mnits"),
    "no such model": ([*TINY, "--model", "resnet"], "model='resnet': there is"),
    "no such features": ([*TINY, "--features", "sift"], "features='sift': there is none"),
    "more records than there are": ([*TINY, "--records", "5000"], "records=5000: the training set has 4000"),
    "negative seed": ([*TINY, "--seed", "-1"], "seed=-1: must be >= 0"),
    "normalisation dearer than all": ([*TINY, "--normalise", "0.1"], "costs ε = "),
    "empty physical batch": ([*TINY, "--physical-batch", "0"], "physical_batch=0: must be >= 1"),
    "no run to resume": (["resume"], "sordino resume: needs RUN; see"),
    "nothing to resume": (["resume", "/nowhere"], "not a run directory"),
}

TOML = {
    "not TOML": ("steps = = 3", "not TOML"),
    "unknown field": ("stepz = 3", "stepz: not a field"),
    "text for a number": ('rate = "much"', "rate='much': must be a number"),
    "a list for a number": ("bound = [1.0]", "bound=<list>: must be a number"),
    "a date for a number": ("rate = 2026-01-01", "must be a number"),
    "a number for text": ("method = 3", "method=3: must be text"),
    "unknown table": ("[optimizer]\nlr = 1", "optimizer is not a table"),
    "a value for a table": ("parameters = 3", "parameters is no table"),
    "text for a parameter": ('[parameters]\ngamma = "x"', "parameter gamma='x'"),
    "truth for a number": ("seed = true", "seed=True: must be a whole number"),
    "a number for truth": ("non_private = 1", "non_private=1: must be true or false"),
}


def refused(arguments, capfd):
    code = main([str(argument) for argument in arguments])
    err = capfd.readouterr().err
    assert code == 2
    assert err.count("\n") == 1, err
    assert err.startswith("sordino")
    assert "Traceback" not in err
    return err


@pytest.mark.parametrize("name", FLAGS)
def test_bad_flags(name, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments, message = FLAGS[name]
    assert message in refused(arguments, capfd)
    assert not any(path.is_file() for path in tmp_path.rglob("*"))  # nothing was begun


@pytest.mark.parametrize("name", TOML)
def test_bad_toml(name, capfd, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    text, message = TOML[name]
    (tmp_path / "f.toml").write_text(text)
    assert message in refused([*TINY, "--config", "f.toml"], capfd)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: None, "cannot be read (No such file"),
        (lambda path: path.mkdir(), "cannot be read (Is a directory"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00"), "not UTF-8 text"),
        (lambda path: path.write_bytes(b"#" * (1 << 21)), "larger than a configuration can be"),
        (lambda path: path.write_text("a=" + "[" * 100_000), "not TOML"),
    ],
    ids=["missing", "folder", "binary", "huge", "deep"],
)
def test_bad_configuration_files(make, message, capfd, tmp_path):
    make(tmp_path / "f.toml")
    assert message in refused([*TINY, "--config", tmp_path / "f.toml"], capfd)


def _occupied(path):
    path.mkdir()
    (path / "thesis.tex").write_text("irreplaceable")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("a file"), "is a file; need a new or empty folder"),
        (_occupied, "holds something already"),
        (lambda path: path.symlink_to("/proc/nowhere"), "cannot be written to"),
    ],
    ids=["file", "occupied", "unwritable"],
)
def test_bad_run_directories(make, message, capfd, tmp_path):
    make(tmp_path / "run")
    assert message in refused([*TINY, "--out", tmp_path / "run"], capfd)


@pytest.fixture
def nobody():
    """This process may not write where it is not allowed to: root is not asked for permission."""
    import rich.console  # noqa: F401  (nobody may not be able to read it later)

    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    yield
    os.seteuid(before)


def test_a_read_only_folder(nobody, capfd):
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o555)
        assert "cannot be written to (Permission denied)" in refused([*TINY, "--out", f"{folder}/run"], capfd)


@pytest.fixture
def stopped(tmp_path):
    sordino.fit("spiral", out=tmp_path / "run", steps=6, records=100, checkpoint_every=2)
    return tmp_path / "run"


def _damage(run: Path, name: str) -> None:
    for path in filter(Path.is_dir, (run / "checkpoints").iterdir()):  # the end of the ledger lies beside them
        (path / name).write_bytes((path / name).read_bytes()[:-1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda run: _damage(run, "state.json"), "no checkpoint that can be used"),
        (lambda run: _damage(run, "tensors.safetensors"), "wrong checksum"),
        (lambda run: (run / "config.toml").unlink(), "not a run directory"),
        (lambda run: (run / "config.toml").write_text("[recipe"), "not TOML"),
        (lambda run: (run / "config.toml").write_text("[recipe]\nname='x'"), "the recipe lacks dataset"),
        (lambda run: (run / "ledger.jsonl").write_text("{}\n"), "line 1 can"),
        (lambda run: (run / "ledger.jsonl").unlink(), "is missing"),
    ],
    ids=["state", "tensors", "no config", "cut config", "poor config", "ledger", "no ledger"],
)
def test_bad_runs_to_resume(change, message, stopped, capfd):
    change(stopped)
    assert message in refused(["resume", stopped], capfd)


def test_a_folder_of_a_run_that_was_killed_before_it_began_can_be_used_again(capfd, tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / ".lock").touch()
    assert "was stopped before its first step, and nothing was drawn" in refused(["resume", folder], capfd)
    assert main([*TINY, "--out", str(folder)]) == 0


def test_data_that_cannot_be_had(capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SORDINO_OFFLINE", "1")
    monkeypatch.delenv("SORDINO_DATA", raising=False)
    monkeypatch.setattr(
        "sordino.app.data.download_sources.Debian.obtain", lambda self, into: into
    )  # it may be installed here
    said = refused(["train", "mnist", "--out", tmp_path / "run"], capfd)
    assert "mnist could not be had from any source" in said
    assert "sordino train digits" in said
    assert not (tmp_path / "run").exists()


def test_data_that_is_damaged(capfd, tmp_path, monkeypatch):
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path))
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "train_images.npy").write_bytes(b"half a file")
    assert "are damaged" in refused(["train", "mnist", "--features", "none", "--out", tmp_path / "run"], capfd)


def test_a_budget_that_not_even_one_step_fits(capfd, tmp_path):
    arguments = [*TINY, "--epsilon", "0.01", "--noise-multiplier", "0.5", "--budget-stop", "--out", tmp_path / "run"]
    assert main([str(argument) for argument in arguments]) == 3
    assert "the first step would exceed it" in capfd.readouterr().err
