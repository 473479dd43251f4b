"""How a run stops: by divergence, by a signal, by a full disk, by kill -9; what is left can be resumed."""

import json
import resource
import signal
import subprocess
import time

import pytest
import torch

import sordino
from bench.resilience import are_same, digest, last_step_entered, run_disturbed, run_undisturbed
from sordino.app.runs import directory
from sordino.app.runs.fit import RunFailed
from tests.runs.cut_off import COMMAND, FLAGS, TINY, Asks, resumed


def test_parameters_that_are_no_numbers_stop_the_run_and_the_last_state_is_kept(tmp_path):
    with pytest.raises(
        RunFailed,
        match=r"lower learning_rate in config.toml; the state after step \d+ is kept: `sordino resume .* with new noise",
    ):
        sordino.fit("spiral", out=tmp_path, optimizer="sgd", learning_rate=1e38, **TINY)
    found, _ = directory.read_latest(tmp_path / "checkpoints")
    assert all(bool(torch.isfinite(tensor).all()) for tensor in found.state["model"].values())
    left = json.loads((tmp_path / "privacy.json").read_text())
    assert left["status"] == "failed"
    assert left["claim"]["epsilon"] > 0


def test_ctrl_c_saves_and_prints_the_claim_so_far(tmp_path):
    process = subprocess.Popen(
        [*COMMAND, "train", "spiral", *FLAGS, "--steps", "2000", "--out", str(tmp_path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    while last_step_entered(tmp_path) < 20 and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 130
    assert ")-differential privacy" in out
    assert f"go on with: sordino resume {tmp_path}" in err
    left = json.loads((tmp_path / "privacy.json").read_text())
    assert left["status"] == "stopped"
    assert left["steps"] == directory.read_latest(tmp_path / "checkpoints")[0].step
    assert left["steps"] == sordino.events.from_json(left["claim"]["event"]).count


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=str)
def test_a_signal_stops_after_the_step_and_the_rest_is_the_same(tmp_path, calm, number):
    before = signal.getsignal(number)
    part = sordino.fit("spiral", out=tmp_path, view=Asks(number, 1), **TINY)
    assert part.status == "stopped"
    assert part.claim.event.count == 7
    assert signal.getsignal(number) is before
    resumed(tmp_path)
    assert all(are_same(calm.run, tmp_path).values())


def test_asked_a_second_time_the_run_ends_at_once_and_can_be_resumed(tmp_path, calm):
    with pytest.raises(KeyboardInterrupt):
        sordino.fit("spiral", out=tmp_path, view=Asks(signal.SIGINT, 2), **TINY)
    resumed(tmp_path)
    assert all(are_same(calm.run, tmp_path).values())


def test_a_full_disk_stops_the_run_and_the_last_state_is_kept(tmp_path, calm):
    def little_room():
        # Of one file; a checkpoint with Adam's state has 57 kB.
        resource.setrlimit(resource.RLIMIT_FSIZE, (40_000, 40_000))

    done = subprocess.run(
        [*COMMAND, "train", "spiral", *FLAGS, "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=little_room,
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "File too large" in line
    assert f"the state after step 0 is kept: `sordino resume {tmp_path}`" in line
    resumed(tmp_path)
    assert all(are_same(calm.run, tmp_path).values())


def test_kill_nine_at_random_moments_changes_no_bit(tmp_path):
    arguments = ["spiral", *FLAGS, "--steps", "400"]
    calm = run_undisturbed(arguments, tmp_path / "calm")
    end, marks = run_disturbed(arguments, tmp_path / "killed", steps=400, kills=3, seed=int(time.time()), linger=0.05)
    assert all(mark["running"] for mark in marks)
    assert all(are_same(tmp_path / "calm", tmp_path / "killed").values())
    assert digest(tmp_path / "calm" / "initial.safetensors") == digest(tmp_path / "killed" / "initial.safetensors")
    for claim in (end["claim"], calm["claim"]):
        tested = claim["rests_on"].pop(0)  # a process that goes on tests the first lot it meets once more
        assert tested.endswith("of 400 lots replayed with a record exchanged")
    assert end["claim"] == calm["claim"]
