"""The option `device` where there is no accelerator: cpu and auto change nothing, and any other device gets one line."""

import pytest
import torch

import sordino as sd
from sordino.app.cli.main import main
from sordino.app.runs.run_device import device_of, resolve_device
from sordino.app.runs.settings import find_changes, make_settings
from sordino.app.runs.write_ahead import parameter_digest

needs_no_accelerator = pytest.mark.skipif(
    torch.accelerator.current_accelerator(check_available=True) is not None, reason="there is an accelerator"
)


@needs_no_accelerator
def test_the_cpu_by_name_by_choice_and_by_default_come_to_the_same_bits(tmp_path):
    digests = {
        parameter_digest(sd.fit("spiral", steps=4, records=300, seed=0, out=tmp_path / str(k), device=device).model)
        for k, device in enumerate((None, "cpu", "auto", torch.device("cpu")))
    }
    assert len(digests) == 1


@needs_no_accelerator
@pytest.mark.parametrize("name", ["cuda:0", "mps", "meta", "no such device"])
def test_a_device_that_is_not_there_gets_one_line_and_leaves_no_folder(name, tmp_path, capsys):
    with pytest.raises(ValueError, match="device="):
        sd.fit("spiral", steps=2, records=300, device=name, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    assert main(["train", "spiral", "--device", name, "--out", str(tmp_path / "run")]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert repr(name) in said


def test_a_device_is_named_by_text_or_by_torch(tmp_path):
    with pytest.raises(TypeError, match="device"):
        sd.fit("spiral", device=3, out=tmp_path / "run")


def test_another_device_forbids_a_replay_and_nothing_else():
    here, there = (make_settings("spiral", {"device": name}).table() for name in ("cpu", "cuda:0"))
    forbidden, adjusted = find_changes(here, there)
    assert forbidden == ""
    assert adjusted == "device was cpu, is cuda:0"


def test_predictions_take_a_device(tmp_path):
    history = sd.fit("spiral", steps=2, records=300, seed=0, out=tmp_path / "run")
    assert device_of(sd.load(history.run, device="cpu").network) == resolve_device("cpu")
    assert device_of(torch.nn.Identity()).type == "cpu"
