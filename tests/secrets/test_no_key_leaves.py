"""No file that a framework writes, uploads or logs holds a key, whatever road the training took."""

import json
import os
import pickle
import signal
import stat
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino import noise_key
from sordino.app.report import write as write_report
from sordino.app.runs.fit import resume
from sordino.integrations import Privacy
from tests.problems import linear, network, private
from tests.runs.cut_off import Asks
from tests.secrets.key_search import Watched, holding, written_forms

pytestmark = pytest.mark.filterwarnings("ignore")  # the frameworks', about themselves

QUERY = sd.NoisySum(sd.Flat(1.0), sd.Gaussian(1.0))
FIXED = Privacy(query=QUERY, delta=1e-4)
X = np.random.default_rng(0).normal(size=(120, 6)).astype("float32")
Y = (X[:, 0] > 0).astype("int64")
DATA = TensorDataset(torch.from_numpy(X), torch.from_numpy(Y))


@pytest.fixture
def watched(monkeypatch):
    return Watched(monkeypatch)


def trained(model=None, sampler=None, steps=3):
    """A short run of one's own loop, with noise that nobody can repeat."""
    run = private(network() if model is None else model, seed=None)
    for lot in run.draws(linear(), sampler or sd.Poisson(0.3), steps=steps):
        run.backward(lot)
    return run


@pytest.mark.parametrize("form", sorted(written_forms(bytes(32))))
def test_the_search_finds_a_key_in_every_form(tmp_path, form):
    key = os.urandom(32)
    (tmp_path / "file").write_bytes(written_forms(key)[form])
    (tmp_path / "other").write_bytes(written_forms(os.urandom(32))[form])
    assert set(holding(tmp_path, [key])) == {"file"}


def test_what_one_saves_of_a_run_holds_no_key(tmp_path, watched):
    model = network()
    run = trained(model)
    torch.save({"model": model.state_dict(), "private": run.state_dict()}, tmp_path / "state.pt")
    torch.save(model, tmp_path / "model.pt")
    (tmp_path / "state.json").write_text(json.dumps(run.state_dict()))
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    (tmp_path / "ledger.pickle").write_bytes(pickle.dumps(run._ledger))
    (tmp_path / "words.txt").write_text(f"{run} {run.claim(1e-5)} {run._root!r} {run.state_dict()}")
    assert len(watched.keys) > 5
    assert not holding(tmp_path, watched.keys)


def test_a_secret_file_holds_the_key_and_only_its_owner_reads_it(tmp_path, watched):
    before = os.umask(0)  # the loosest that a user can have
    try:
        run = trained()
        path = run.save_secret(tmp_path)
    finally:
        os.umask(before)
    assert path.name == noise_key.NAME
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert set(holding(tmp_path, watched.keys)) == {noise_key.NAME}
    assert noise_key.NAME in (tmp_path / ".gitignore").read_text().splitlines()
    assert noise_key.erase_secret(tmp_path)
    assert not holding(tmp_path, watched.keys)


def test_a_state_holds_nothing_that_a_sampler_remembers_of_the_records(watched):
    """Gradient lengths, and who was drawn, are as secret as the records."""
    for sampler in (
        sd.Sorted.top_k(8),
        sd.ByLength(sd.Band(0.5, np.inf, inside=0.4, outside=0.1), most=0.4, refresh=2),
    ):
        run = trained(sampler=sampler)
        saved = run.state_dict()
        memory = run._phase.memory()
        assert memory
        assert saved["remembers_records"]
        assert not any(json.dumps(value)[1:-1] in json.dumps(saved) for value in memory.values() if len(str(value)) > 8)
        other = private(seed=None)
        other.load_state_dict(saved)  # without the key the sampler asks the records anew
        for lot in other.draws(linear(), sampler, steps=3):
            other.backward(lot)
        assert other.steps == 6


def test_a_checkpoint_of_torch_distributed_holds_no_key(tmp_path, watched):
    import torch.distributed.checkpoint as dcp

    model = network()
    run = trained(model)
    dcp.save({"model": model.state_dict(), "private": sd.InCheckpoint(run)}, checkpoint_id=tmp_path, no_dist=True)
    assert list(tmp_path.rglob("*.distcp"))
    assert not holding(tmp_path, watched.keys)


def test_a_log_holds_no_key(tmp_path, watched):
    pytest.importorskip("tensorboard", reason="tensorboard writes the log")
    model, log = network(), sd.Log.tensorboard(str(tmp_path))
    run, optimizer = private(model, seed=None), torch.optim.SGD(model.parameters(), lr=0.1)
    for lot in run.draws(linear(), sd.Poisson(0.3), steps=3):
        run.backward(lot)
        log.step(run, optimizer, delta=1e-5)
        optimizer.step()
    log.end(run, delta=1e-5)
    assert list(tmp_path.rglob("*"))
    assert not holding(tmp_path, watched.keys)


def test_checkpoints_of_the_trainer_hold_no_key(tmp_path, watched):
    transformers = pytest.importorskip("transformers", reason="transformers is in the extra [huggingface]")
    from sordino.integrations.transformers import Trainer
    from tests.integrations.words import Sentences, bert, padded

    given = {"per_device_train_batch_size": 20, "max_steps": 4, "save_steps": 2, "logging_steps": 1}
    args = transformers.TrainingArguments(str(tmp_path), report_to=[], disable_tqdm=True, use_cpu=True, **given)
    run = Trainer(bert(), args, data_collator=padded, train_dataset=Sentences(100, seed=0), privacy=FIXED)
    run.train()
    run.save_model(str(tmp_path / "published"))
    assert (tmp_path / "checkpoint-2" / "sordino.json").exists()
    assert (tmp_path / "checkpoint-4" / "rng_state.pth").exists()
    assert not holding(tmp_path, watched.keys)


def test_checkpoints_of_lightning_hold_no_key(tmp_path, watched):
    lightning = pytest.importorskip("lightning", reason="lightning is in the extra [lightning]")
    from tests.integrations.test_lightning import fitted

    logger = lightning.pytorch.loggers.CSVLogger(tmp_path)
    made, run = fitted(tmp_path, steps=4, logger=logger, log_every_n_steps=1)
    run.save_checkpoint(tmp_path / "by hand.ckpt")
    torch.save(made, tmp_path / "module.pt")
    assert list(tmp_path.rglob("*.ckpt"))
    assert not holding(tmp_path, watched.keys)


def test_what_skorch_saves_holds_no_key(tmp_path, watched):
    pytest.importorskip("skorch", reason="skorch is in the extra [skorch]")
    from skorch.callbacks import Checkpoint

    from sordino.integrations.skorch import NeuralNetClassifier

    kept = Checkpoint(monitor=None, dirname=str(tmp_path / "kept"), f_pickle="net.pickle")
    target = Privacy.target(epsilon=4.0, delta=1e-4, bound=1.0)
    given = {"privacy": target, "max_epochs": 2, "batch_size": 40, "classes": [0, 1], "verbose": 0}
    net = NeuralNetClassifier(nn.Linear(6, 2), callbacks=[kept], train_split=None, **given).fit(X, Y)
    net.save_params(
        f_params=tmp_path / "params.pt", f_optimizer=tmp_path / "optimizer.pt", f_history=tmp_path / "h.json"
    )
    (tmp_path / "net.pickle").write_bytes(pickle.dumps(net))
    assert not holding(tmp_path, watched.keys)


def test_a_pickled_estimator_of_scikit_learn_holds_no_key(tmp_path, watched):
    pytest.importorskip("sklearn", reason="scikit-learn is in the extra [sklearn]")
    from sordino.integrations.sklearn import DPClassifier

    model = DPClassifier(epsilon=4.0, delta=1e-4, low=-5.0, high=5.0, classes=[0, 1], epochs=2, lot=40).fit(X, Y)
    (tmp_path / "model.pickle").write_bytes(pickle.dumps(model))
    assert not holding(tmp_path, watched.keys)


GIVEN = {"steps": 6, "records": 200, "checkpoint_every": 2, "evaluate_every": 3}


def test_the_directory_of_a_finished_run_holds_no_key(tmp_path, watched):
    history = sd.fit("spiral", out=tmp_path, trace=True, normalise=20.0, **GIVEN)
    write_report(tmp_path)
    assert history.finished
    assert (tmp_path / "report.html").exists()
    assert not (tmp_path / noise_key.NAME).exists()
    assert not holding(tmp_path, watched.keys)


def test_of_a_run_that_can_be_resumed_the_secret_file_alone_holds_the_key_and_the_end_erases_it(tmp_path, watched):
    asked = {**GIVEN, "steps": 12}
    history = sd.fit("spiral", out=tmp_path, view=Asks(signal.SIGINT, 1), **asked)
    assert not history.finished
    assert set(holding(tmp_path, watched.keys)) == {noise_key.NAME}
    assert stat.S_IMODE((tmp_path / noise_key.NAME).stat().st_mode) == 0o600
    assert "SECRET-*" in (tmp_path / ".gitignore").read_text().splitlines()
    assert resume(tmp_path).finished
    assert not holding(tmp_path, watched.keys)


def test_a_key_that_was_asked_to_be_kept_is_kept_for_the_audit(tmp_path, watched):
    sd.fit("spiral", out=tmp_path, keep_key=True, **GIVEN)
    assert set(holding(tmp_path, watched.keys)) == {noise_key.NAME}


def test_the_folder_of_a_search_holds_no_key_when_it_is_over(tmp_path, watched):
    from sordino.app.runs.search import NegativeBinomial, carry_out_search, plan_search
    from tests.runs.test_search import GRID, small

    carry_out_search(plan_search(small(seed=None), GRID, NegativeBinomial(1.2)), tmp_path / "found")
    assert not holding(tmp_path, watched.keys)


def test_the_command_line_says_where_the_key_is(tmp_path, capsys):
    from sordino.app.cli.main import main

    flags = ["--steps", "2", "--records", "100", "--no-report"]
    with warnings.catch_warnings():
        main(["train", "spiral", *flags, "--out", str(tmp_path / "a")])
        erased = capsys.readouterr().out
        main(["train", "spiral", *flags, "--keep-key", "--out", str(tmp_path / "b")])
        kept = capsys.readouterr().out
    assert "noise key      erased" in erased
    assert noise_key.NAME in kept
    assert "never publish it" in kept
