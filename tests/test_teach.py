"""What a newcomer meets first: examples that teach, one import path, help, and a log of what may be logged."""

import contextlib
import importlib.util
import io
import pydoc
import runpy
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch.utils.data import TensorDataset

import sordino as sd
from sordino import events
from sordino.accounting import PLD
from sordino.integrations.missing_library import NotInstalled

FOLDER = Path(__file__).parents[1] / "examples" / "teach"


@pytest.mark.parametrize("script", sorted(FOLDER.glob("*.py")), ids=lambda path: path.stem)
def test_an_example_that_teaches_ends_with_a_claim(script):
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        runpy.run_path(str(script), run_name="__main__")
    assert "-differential privacy\n" in out.getvalue()


def dpsgd(sigma):
    return sd.NoisySum(sd.Flat(1.0), sd.Gaussian(sigma))


def test_calibrate_meets_its_epsilon_and_hardly_less():
    sigma = sd.calibrate(dpsgd, sd.Poisson(0.05), 50, epsilon=1.5, delta=1e-5)
    found = PLD().epsilon(sd.dry_run(dpsgd(sigma), sd.Poisson(0.05), 1, 50), 1e-5)
    assert 1.49 < found <= 1.5


def test_calibrate_goes_by_the_query_s_own_price():
    def twice(sigma):
        return sd.NoisyLookahead(sd.Flat(1.0), [sd.Gaussian(sigma)] * 2, 0.1)

    plain = sd.calibrate(dpsgd, sd.Poisson(0.05), 20, epsilon=1.5, delta=1e-5)
    assert sd.calibrate(twice, sd.Poisson(0.05), 20, epsilon=1.5, delta=1e-5) > 1.3 * plain


def test_a_noise_may_stand_where_an_event_is_asked_for():
    assert events.Poisson(0.01, sd.Gaussian(1.1)) == events.Poisson(0.01, events.Gaussian(1.1))
    assert events.Repeat(sd.Laplace(2.0), 3) == events.Repeat(events.Laplace(2.0), 3)
    assert events.Together(sd.Gaussian(1.0)).events == (events.Gaussian(1.0),)
    assert events.Poisson(0.01, sd.Gaussian(1.1)).to_json() == events.Poisson(0.01, events.Gaussian(1.1)).to_json()
    without = events.Poisson(0.01, sd.Gaussian(0.0))
    assert any(
        isinstance(inner, events.NonPrivate) for inner in events.walk(without)
    )  # no noise, no event that has some
    with pytest.raises(TypeError, match="must be an event"):
        events.Poisson(0.01, sd.Flat(1.0))


def test_help_shows_a_loop_and_every_step_of_it():
    said = pydoc.render_doc(sd.Private, renderer=pydoc.plaintext)
    for word in ("sd.Private(model", "private.draws(", "private.backward(lot)", "optimizer.step()", "private.claim("):
        assert word in said


def logged(log, query, steps=12, **options):
    model = torch.nn.Linear(3, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.25)
    private = sd.Private(model, lambda m, x: m(x).square().sum(1), query)
    for lot in private.draws(TensorDataset(torch.randn(300, 3)), sd.Poisson(0.1), steps, expected_batch=30):
        private.backward(lot)
        if options.get("by_hand"):
            model.weight.grad.add_(1.0)
        log.step(private, optimizer, delta=1e-5)
        optimizer.step()
    return private, model


def test_a_log_has_what_may_be_logged_and_nothing_else():
    seen = {}
    log = sd.Log(lambda values, step: seen.update({step: dict(values)}), every=4)
    private, model = logged(log, sd.WithLoss(dpsgd(2.0), bound=1.0, noise=sd.Gaussian(20.0)))
    assert list(seen) == list(range(1, 13))
    assert {step for step, values in seen.items() if "privacy/epsilon" in values} == {1, 4, 8, 12}
    assert seen[12]["privacy/epsilon"] == pytest.approx(private.claim(1e-5).epsilon, rel=1e-6)
    assert seen[12]["train/loss"] == private.loss
    assert seen[12]["train/learning_rate"] == 0.25
    length = torch.cat([p.grad.flatten() for p in model.parameters()]).norm()
    assert seen[12]["train/gradient_norm"] == pytest.approx(float(length), rel=1e-6)
    assert set().union(*seen.values()) == {
        "privacy/epsilon",
        "privacy/delta",
        "train/learning_rate",
        "train/gradient_norm",
        "train/signal_to_noise",
        "train/loss",
    }


def test_a_log_leaves_out_a_gradient_that_was_not_released_and_an_epsilon_that_is_none():
    seen = {}
    log = sd.Log(lambda values, step: seen.update({step: dict(values)}), every=1)
    private, _ = logged(log, dpsgd(2.0), steps=3, by_hand=True)
    assert isinstance(private.claim(1e-5), sd.NoGuarantee)
    assert not any("train/gradient_norm" in values for values in seen.values())
    assert "privacy/epsilon" not in seen[3]


def test_the_last_value_of_a_log_is_what_was_spent():
    seen = {}
    log = sd.Log(lambda values, step: seen.setdefault(step, {}).update(values), every=10)
    private, _ = logged(log, dpsgd(2.0), steps=12)
    assert "privacy/epsilon" not in seen[12]
    log.end(private, delta=1e-5)
    assert seen[12]["privacy/epsilon"] == private.claim(1e-5).epsilon > seen[10]["privacy/epsilon"]
    private.backward(torch.ones(3, 3))  # that no sampler drew
    before = dict(seen[12])
    log.end(private, delta=1e-5)
    assert seen[12] == before


@pytest.mark.filterwarnings("ignore")  # theirs
def test_a_log_to_weights_and_biases_is_read_back(tmp_path, monkeypatch):
    wandb = pytest.importorskip("wandb", reason="wandb is in the extra [wandb]")
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    monkeypatch.chdir(tmp_path)
    log = sd.Log.wandb(project="test", every=1)
    private, _ = logged(log, dpsgd(2.0), steps=3)
    wandb.run.log({}, commit=True)  # it keeps the last step back until the next
    kept = dict(wandb.run.summary)
    wandb.finish()
    assert kept["privacy/epsilon"] == pytest.approx(private.claim(1e-5).epsilon)
    assert list(tmp_path.rglob("*.wandb"))


@pytest.mark.filterwarnings("ignore")  # theirs
def test_a_log_to_mlflow_is_read_back(tmp_path, monkeypatch):
    mlflow = pytest.importorskip("mlflow", reason="mlflow is in the extra [mlflow]")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    mlflow.set_tracking_uri(f"file://{tmp_path}/runs")
    log = sd.Log.mlflow(every=1)
    private, _ = logged(log, dpsgd(2.0), steps=3)
    run = mlflow.active_run().info.run_id
    mlflow.end_run()
    kept = mlflow.MlflowClient().get_metric_history(run, "privacy/epsilon")
    assert [one.step for one in kept] == [1, 2, 3]
    assert kept[-1].value == pytest.approx(private.claim(1e-5).epsilon)


def test_a_log_to_tensorboard_is_read_by_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logged(sd.Log.tensorboard(str(tmp_path), every=1), dpsgd(2.0), steps=3)
    found = EventAccumulator(str(tmp_path)).Reload()
    assert set(found.Tags()["scalars"]) == {
        "privacy/epsilon",
        "privacy/delta",
        "train/learning_rate",
        "train/gradient_norm",
        "train/signal_to_noise",
    }
    assert [row.step for row in found.Scalars("privacy/epsilon")] == [1, 2, 3]


@pytest.mark.parametrize("library", ["wandb", "mlflow"])
def test_a_log_to_what_is_not_installed_names_the_extra(library):
    if importlib.util.find_spec(library) is not None:
        pytest.skip(f"{library} is installed")
    with pytest.raises(NotInstalled, match=rf"sordino\[{library}\]"):
        getattr(sd.Log, library)()


NO_TORCH = """
import sys
class NoTorch:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")
sys.meta_path.insert(0, NoTorch())
"""
"""What an environment without it answers."""


@pytest.mark.parametrize(
    "code",
    [
        "from sordino.accounting import PLD; from sordino.events import *; PLD().epsilon(Gaussian(2.0), 1e-5)",
        "from sordino.accounting import Budget, calibrate, RDP",
        "from sordino.app.cli.main import main; main(['account', '--rate', '0.01', '--multiplier', '1', '--steps', '9'])",
        "from sordino.app.cli.main import main; main(['tradeoff', '--epsilon', '1', '--delta', '1e-5'])",
    ],
)
def test_accounting_works_where_there_is_no_torch(code):
    ran = subprocess.run([sys.executable, "-c", NO_TORCH + code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    assert "torch" not in ran.stderr
