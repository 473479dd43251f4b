"""Interruptions change no figure: only finished trainings are kept, and an interrupted one goes on with the same bits."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import ExperimentSize
from sordino_lab.training_store import (
    TRAININGS,
    _can_resume,
    digest,
    digest_of_table,
    find,
    keep,
    rename_files,
    train,
    unfinished_folder,
)

STEPS = 60


def heed_interrupts():
    """Lets a child process heed Ctrl-C; shells start what runs in the background without that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def settings_of(sampler=None, steps=STEPS):
    given = {"learning_rate": 0.1, **({"sampler": sampler} if sampler else {})}
    tiny = CurvePlan(label="DP-SGD", method="dpsgd", recipe="thesis-mnist", given=given).settings(
        ExperimentSize.TINY, 0
    )
    options = replace(tiny.options, evaluate_every=5, checkpoint_every=7)
    return replace(tiny, recipe=tiny.recipe.but(steps=steps), options=options)


def rows_of(kept):
    return [{name: value for name, value in row.items() if name not in ("seconds", "delta", "learning_rate")}
            for row in kept.rows]  # fmt: skip


TRAIN = """
import pickle, sys
from pathlib import Path
from sordino_lab.training_store import train
settings = pickle.loads(Path(sys.argv[1]).read_bytes())
print("begun", flush=True)
train(settings, Path(sys.argv[2]))
"""


@pytest.mark.parametrize("sampler", [None, pytest.param("sorted-top-k", marks=pytest.mark.slow)])
def test_a_training_interrupted_at_random_moments_ends_as_an_undisturbed_one(tmp_path, sampler):
    import pickle

    settings = settings_of(sampler, steps=300)
    undisturbed = train(settings, tmp_path / "undisturbed")
    asked, cache = tmp_path / "settings", tmp_path / "cache"
    asked.write_bytes(pickle.dumps(settings))
    chance, interrupted = random.Random(5), 0
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        with subprocess.Popen(
            [sys.executable, "-c", TRAIN, str(asked), str(cache)], stdout=subprocess.PIPE, preexec_fn=heed_interrupts
        ) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(chance.uniform(0.2, 1.2))
            process.send_signal(number)
            process.wait(10)
        interrupted += find(settings, cache) is None
        if find(settings, cache) is not None:
            break
    assert interrupted >= 1
    again = train(settings, cache)
    assert rows_of(again) == rows_of(undisturbed)
    assert again.epsilon == undisturbed.epsilon
    assert again.reason == undisturbed.reason
    assert not unfinished_folder(settings, cache).exists()


def test_a_training_that_was_asked_to_stop_is_kept_nowhere(tmp_path, monkeypatch):
    from sordino.app.runs import training_loop

    settings = settings_of()
    step = training_loop.Training.take_step

    def interrupt(training):
        step(training)
        if training.private.steps == 23:
            os.kill(os.getpid(), signal.SIGINT)

    monkeypatch.setattr(training_loop.Training, "take_step", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path)
    assert find(settings, tmp_path) is None
    assert unfinished_folder(settings, tmp_path).is_dir()
    monkeypatch.setattr(training_loop.Training, "take_step", step)
    again, undisturbed = train(settings, tmp_path), train(settings, tmp_path / "undisturbed")
    assert rows_of(again) == rows_of(undisturbed)
    assert again.seconds > 0


def test_a_training_that_ran_out_of_disk_is_no_result(tmp_path, monkeypatch):
    from sordino.app.runs import directory
    from sordino.app.runs.fit import RunFailed

    def full(*given):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(directory, "save_checkpoint", full)
    with pytest.raises((RunFailed, OSError)):
        train(settings_of(), tmp_path)
    assert find(settings_of(), tmp_path) is None


def alive(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


SWEEP = """
import sys
from pathlib import Path
from sordino_lab.workers import Workers
import time, os

def busy(path):
    Path(path).write_text(str(os.getpid()))
    while True:
        sum(range(1000))

if __name__ == "__main__":
    with Workers(2) as workers:
        for k in range(2):
            workers.start(k, busy, str(Path(sys.argv[1]) / str(k)))
        time.sleep(60)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_their_parent_within_seconds(tmp_path, number):
    script = tmp_path / "sweep.py"
    script.write_text(SWEEP)
    with subprocess.Popen(
        [sys.executable, str(script), str(tmp_path)], stderr=subprocess.DEVNULL, preexec_fn=heed_interrupts
    ) as process:
        files = [tmp_path / "0", tmp_path / "1"]
        until = time.monotonic() + 30
        while not all(path.exists() and path.read_text() for path in files) and time.monotonic() < until:
            time.sleep(0.05)
        pids = [int(path.read_text()) for path in files]
        process.send_signal(number)
        process.wait(10)
    until = time.monotonic() + 8
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, pids))


JUST_STARTED = """
import signal, sys, time
from sordino_lab.workers import Workers

def wait_and_leave(number, frame):
    time.sleep(3)  # the workers could print something in this time
    sys.exit()

if __name__ == "__main__":
    signal.signal(signal.SIGINT, wait_and_leave)
    with Workers(2) as workers:
        for k in range(2):
            workers.start(k, time.sleep, 60)
        print("started", flush=True)
        time.sleep(60)
"""


@pytest.mark.parametrize("seconds", [0.3, 1.0])
def test_workers_that_are_just_starting_print_nothing_when_a_terminal_interrupts_them(tmp_path, seconds):
    script = tmp_path / "started.py"
    script.write_text(JUST_STARTED)
    with subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "started\n"
        time.sleep(seconds)
        # As Ctrl-C does, for all processes of the group.
        os.killpg(process.pid, signal.SIGINT)
        said = process.stderr.read()
    assert said == ""


PAUSED_AT_ONCE = """
import os, signal, sys, time
from pathlib import Path
from sordino_lab.workers import Workers

if __name__ == "__main__":
    with Workers(2) as workers:
        for k in range(2):
            workers.start(k, time.sleep, 60)
        workers.pause()
        Path(sys.argv[1]).write_text(" ".join(map(str, workers._pids())))
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at /proc")
def test_workers_that_are_paused_in_their_first_moments_end_with_their_parent(tmp_path):
    script = tmp_path / "paused.py"
    script.write_text(PAUSED_AT_ONCE)
    subprocess.run([sys.executable, str(script), str(tmp_path / "pids")], stderr=subprocess.DEVNULL, timeout=60)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    until = time.monotonic() + 60
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    left = [pid for pid in pids if alive(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_figure_that_was_interrupted_says_how_it_goes_on(tmp_path, number):
    command = [sys.executable, "-m", "sordino", "lab", "run", "dp-gd", "--quick", "--out", str(tmp_path / "lab")]
    environment = {**os.environ, "SORDINO_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stderr=subprocess.PIPE, text=True, env=environment, preexec_fn=heed_interrupts
    ) as process:
        assert process.stderr is not None
        assert "trainings for 1 figure" in process.stderr.readline()
        time.sleep(1.0)
        process.send_signal(number)
        said = process.stderr.read()
        assert process.wait(30) == 130
    assert "the same command goes on from there" in said
    assert not (tmp_path / "lab" / "dp-gd.json").exists()


def test_a_file_of_a_training_is_named_by_its_settings(tmp_path):
    settings = settings_of("sorted-top-k")
    path = keep(settings, train(settings, tmp_path), tmp_path)
    table = json.loads(path.read_text())
    assert digest_of_table(table["settings"]) == digest(settings) == path.stem
    path.rename(tmp_path / "another.json")
    assert rename_files(tmp_path) == 1
    assert find(settings, tmp_path) is not None


def test_trainings_that_come_with_the_package_are_named_by_their_settings():
    for path in TRAININGS.glob("*.json"):
        assert digest_of_table(json.loads(path.read_text("utf-8"))["settings"]) == path.stem


def test_a_training_that_another_process_holds_is_left_alone(tmp_path):
    from sordino.app.runs.write_ahead import RunIsBusy, WriteAheadLedger

    folder = tmp_path / "run"
    (folder / "checkpoints").mkdir(parents=True)
    (folder / "config.toml").write_text("")
    (folder / "privacy.json").write_text("{}")
    with WriteAheadLedger(folder, new=True), pytest.raises(RunIsBusy):
        _can_resume(folder)
    assert folder.is_dir()
