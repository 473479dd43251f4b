"""Runs on a device: `fit`, `resume`, `load`, audits and commands compute where they are told, and files know no device."""

import json

import pytest
import safetensors.torch
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sordino as sd
from sordino.app.audits.audited_run import load_job
from sordino.app.audits.one_run_audit import audit_one_run
from sordino.app.cli.main import main
from sordino.app.runs.declared_file import OwnFile
from sordino.app.runs.fit import resume
from sordino.app.runs.run_device import device_of, list_devices, resolve_device
from sordino.app.runs.write_ahead import parameter_digest
from sordino.ledger.claims import Guarantee
from tests.device.simulated import start

sim = start()

DEVICE = torch.device("sim", 0)
SHORT = {"records": 400, "seed": 0, "noise_multiplier": 1.0}


def table(n=200):
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(n, 5, generator=generator)
    return TensorDataset(x, (x[:, 0] > 0).long())


def write_table(path, records=300):
    rows = "\n".join(f"{k % 7 + k / 1000},{k % 3},{'yes' if k % 7 > 3 else 'no'}" for k in range(records))
    path.write_text(f"a,b,target\n{rows}\n")


def small_model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Dropout(0.1), nn.Linear(8, 2))


def test_a_recipe_on_the_device_comes_to_what_the_cpu_comes_to(tmp_path):
    there = sd.fit("spiral", steps=6, out=tmp_path / "there", device="sim:0", **SHORT)
    here = sd.fit("spiral", steps=6, out=tmp_path / "here", device="cpu", **SHORT)
    assert {p.device for p in there.model.parameters()} == {DEVICE}
    assert isinstance(there.claim, Guarantee)
    assert there.claim.epsilon == here.claim.epsilon
    for a, b in zip(there.model.parameters(), here.model.parameters(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-4, atol=1e-5)
    assert there.test_loss == pytest.approx(here.test_loss, rel=1e-4)
    assert there.measures.keys() == here.measures.keys()


def test_a_model_of_your_own_is_trained_where_it_is_or_is_moved(tmp_path):
    followed = sd.fit(small_model().to("sim"), table(), epsilon=8.0, steps=4, rate=0.1, out=tmp_path / "a", seed=0)
    model = small_model()
    moved = sd.fit(model, table(), epsilon=8.0, steps=4, rate=0.1, out=tmp_path / "b", seed=0, device=DEVICE)
    assert device_of(followed.model) == device_of(moved.model) == DEVICE
    assert moved.model is model
    assert parameter_digest(followed.model) == parameter_digest(moved.model)
    # Records may be on the device too.
    on_device = TensorDataset(*(column.to("sim") for column in table().tensors))
    again = sd.fit(small_model().to("sim"), on_device, epsilon=8.0, steps=4, rate=0.1, out=tmp_path / "c", seed=0)
    assert parameter_digest(again.model) == parameter_digest(moved.model)


def test_the_digest_is_that_of_the_bytes_wherever_they_are_and_costs_one_wait():
    model = small_model()
    model.register_buffer("count", torch.tensor(7))
    here = parameter_digest(model)
    model.to("sim")
    with sim.counting() as cost:
        assert parameter_digest(model) == here
    assert cost.waits == 1


def test_files_of_a_run_are_read_on_the_cpu(tmp_path):
    history = sd.fit("spiral", steps=4, out=tmp_path / "run", device="sim", **SHORT)
    saved = safetensors.torch.load_file(history.run / "model.safetensors")
    assert {tensor.device.type for tensor in saved.values()} == {"cpu"}
    x = torch.randn(20, 2)
    here, there = sd.load(history.run), sd.load(history.run, device="sim")
    assert device_of(here.network).type == "cpu"
    assert device_of(there.network) == DEVICE
    torch.testing.assert_close(there.compute_outputs(x), here.compute_outputs(x), rtol=1e-5, atol=1e-6)
    assert there.export(tmp_path / "net.safetensors").is_file()


class _StopsAfter:
    """Ends the process's training as a kill would, after some steps."""

    def __init__(self, steps):
        from sordino.app.runs.progress_view import Silent

        self._silent, self._left = Silent(), steps

    def __getattr__(self, name):
        if name == "show_step":
            self._left -= 1
            if not self._left:
                raise SystemExit("killed")
        return getattr(self._silent, name)


def begin_and_kill(folder, after, **given):
    with pytest.raises(SystemExit):
        sd.fit("spiral", steps=8, checkpoint_every=2, out=folder, view=_StopsAfter(after), **SHORT, **given)


def test_a_killed_run_is_replayed_on_the_device_under_deterministic_algorithms(tmp_path):
    torch.use_deterministic_algorithms(True)
    try:
        whole = sd.fit("spiral", steps=8, checkpoint_every=2, out=tmp_path / "whole", device="sim", **SHORT)
        begin_and_kill(tmp_path / "killed", 5, device="sim")
        resumed = resume(tmp_path / "killed")
    finally:
        torch.use_deterministic_algorithms(False)
    assert parameter_digest(resumed.model) == parameter_digest(whole.model)
    assert resumed.claim.epsilon == whole.claim.epsilon


def test_a_killed_run_goes_on_elsewhere_and_its_steps_are_charged_and_left_out(tmp_path, capsys):
    begin_and_kill(tmp_path / "run", 5, device="sim")
    config = tmp_path / "run" / "config.toml"
    assert 'device = "sim"' in config.read_text()
    config.write_text(config.read_text().replace('device = "sim"', 'device = "cpu"'))
    resumed = resume(tmp_path / "run")
    assert device_of(resumed.model).type == "cpu"
    assert resumed.finished
    assert isinstance(resumed.claim, Guarantee)
    ledger = (tmp_path / "run" / "ledger.jsonl").read_text()
    assert "lineage" in ledger


def test_the_command_line_trains_predicts_and_audits_on_the_device(tmp_path, capsys):
    write_table(tmp_path / "people.csv")
    flags = "--target target --classes yes|no --bounds a=0:8,b=0:3 --noise-multiplier 1 --steps 6 --seed 0 --keep-key"
    out = tmp_path / "run"
    code = main(
        ["train", "--data", str(tmp_path / "people.csv"), *flags.split(), "--device", "auto", "--out", str(out)]
    )
    assert code == 0, capsys.readouterr()
    assert (out / "report.html").is_file()
    capsys.readouterr()
    assert main(["predict", str(out), str(tmp_path / "people.csv"), "--device", "sim:0", "--json"]) == 0
    there = json.loads(capsys.readouterr().out)
    assert main(["predict", str(out), str(tmp_path / "people.csv"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["prediction"] == there["prediction"]
    assert main(["audit", "selftest", str(out)]) == 0, capsys.readouterr()
    torch.use_deterministic_algorithms(True)
    try:
        capsys.readouterr()
        assert main(["audit", "replay", str(out), "--steps", "3"]) == 0, capsys.readouterr()
    finally:
        torch.use_deterministic_algorithms(False)


def test_preparations_and_class_weights_follow_the_device(tmp_path):
    write_table(tmp_path / "people.csv")
    own = OwnFile(path=str(tmp_path / "people.csv"), target="target", classes=("yes", "no"), bounds={"b": (0, 3)})
    given = {"noise_multiplier": 1.0, "steps": 4, "seed": 0, "class_weights": "balanced"}
    there = sd.fit("linear", own, out=tmp_path / "there", device="sim", **given)
    here = sd.fit("linear", own, out=tmp_path / "here", **given)
    for (name, a), b in zip(there.model.state_dict().items(), here.model.state_dict().values(), strict=True):
        torch.testing.assert_close(a.cpu(), b, rtol=1e-3, atol=1e-4, msg=name)
    weighted = sd.fit("linear", own, out=tmp_path / "w", device="sim", **{**given, "class_weights": "yes=3"})
    assert isinstance(weighted.claim, Guarantee)


def test_a_one_run_audit_trains_its_copy_on_the_device(tmp_path):
    history = sd.fit("spiral", steps=4, out=tmp_path / "run", device="sim", records=400, noise_multiplier=2.0)
    job = load_job(history.run, {"steps": 4})
    assert device_of(job.problem.model) == DEVICE
    result = audit_one_run(job, 40, ("gradient", "noise"), seed=0)
    assert result.measured


@pytest.mark.parametrize("name", ["cuda:0", "sim:7", "mps", "meta", "no such thing", "xpu:0"])
def test_a_device_that_is_not_there_gets_one_line(name, tmp_path, capsys):
    with pytest.raises(ValueError, match="device=") as caught:
        sd.fit("spiral", steps=2, out=tmp_path / "run", device=name, **SHORT)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert main(["train", "spiral", "--device", name, "--out", str(tmp_path / "run")]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_auto_is_the_accelerator_unless_training_would_not_work_on_it():
    assert list_devices()[0] == "cpu"
    assert resolve_device("auto") == DEVICE
    assert resolve_device(None) is None
    with sim.switches(no_float64=True):
        assert resolve_device("auto") == torch.device("cpu")
