"""The queue takes the most valuable training first, can be paused and killed, and goes on where it was."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from sordino_lab import queue as queue_module
from sordino_lab import result_store
from sordino_lab.curve_plan import CurvePlan
from sordino_lab.experiment import ExperimentSize
from sordino_lab.queue import Queue, QueuedJob, all_jobs
from sordino_lab.scoreboard import MET, MISSED, Score, published_numbers
from sordino_lab.training_store import digest

from sordino.app.cli.main import main
from sordino.file_lock import lock_file

QUEUE = """
import pickle, sys
from pathlib import Path
from sordino_lab import queue

jobs = pickle.loads(Path(sys.argv[1]).read_bytes())
queue.all_jobs = lambda: jobs
if __name__ == "__main__":
    folder = Path(sys.argv[2])
    sys.exit(queue.Queue(folder, folder / "trainings", folder / "out").run(1, lambda text: print(text, flush=True)))
"""


def jobs(count, steps=100):
    found = []
    for seed in range(count):
        plan = CurvePlan(label="x", method="dpsgd", recipe="thesis-mnist", epochs=steps / 10, batch=20, records=200,
                    given={"dataset": "spiral", "model": "mlp", "features": "none"})  # fmt: skip
        settings = plan.settings(ExperimentSize.FULL, seed)
        found.append(QueuedJob(digest(settings), f"seed {seed}", 1.0 + seed, 1.0, ("sorted-mnist-fixed",), settings))
    return found


def test_what_is_worth_most_for_its_time_is_first(tmp_path, monkeypatch):
    monkeypatch.setattr(queue_module, "all_jobs", lambda: jobs(3))
    queue = Queue(tmp_path, tmp_path / "trainings", tmp_path / "out")
    assert [job.about for job in queue.waiting()] == ["seed 2", "seed 1", "seed 0"]


@pytest.mark.parametrize("status", [MET, MISSED])
def test_a_further_seed_is_worth_as_much_as_the_first_only_where_a_published_number_is_missed(status, monkeypatch):
    number = next(one for one in published_numbers() if one.id == "sorted-mnist-fixed")
    monkeypatch.setattr(queue_module, "score_results", lambda results: [Score(number, status)])
    label = number.what.partition(", ")[2]
    worth = {job.about: job.worth for job in all_jobs()}
    first, second = (worth[f"{number.id}: {label}, seed {seed}"] for seed in (0, 1))
    assert (second == first) is (status == MISSED)
    assert second <= first


@pytest.mark.parametrize("status", [MET, MISSED])
def test_further_seeds_of_a_search_count_as_the_first_where_its_best_bound_is_missed(status, monkeypatch):
    number = next(one for one in published_numbers() if one.id == "mnist-clip-search")
    monkeypatch.setattr(queue_module, "score_results", lambda results: [Score(number, status)])
    worth = {job.about: job.worth for job in all_jobs() if job.ids[-1] == number.id}
    first, second = (worth[f"{number.id}: DP-SGD, C = 2.5, seed {seed}"] for seed in (0, 1))
    assert (second == first) is (status == MISSED)


def test_figures_that_the_package_lacks_at_the_source_s_size_come_before_those_it_has(monkeypatch):
    shipped = result_store.read_results(result_store.SHIPPED)
    full = [job.worth for job in all_jobs() if "outlook-fine-tuning" in job.ids]
    shipped["outlook-fine-tuning"]["size"] = ExperimentSize.QUICK.value
    monkeypatch.setattr(queue_module.result_store, "read_results", lambda folder: shipped)
    quick = [job.worth for job in all_jobs() if "outlook-fine-tuning" in job.ids]
    del shipped["outlook-fine-tuning"]
    absent = [job.worth for job in all_jobs() if "outlook-fine-tuning" in job.ids]
    assert absent == quick
    assert all(before < after for before, after in zip(full, absent, strict=True))


def test_the_queue_has_every_training_of_the_sources_once_and_the_tables_of_the_thesis_first():
    every = all_jobs()
    assert len({job.name for job in every}) == len(every) > 300
    first = sorted(every, key=lambda job: -job.worth / job.seconds)[:10]
    assert {"sorted-mnist-fixed", "sorted-mnist-median"} <= {name for job in first for name in job.ids}
    # The sources' own networks: nothing at full size trains a stand-in.
    for job in every:
        if job.settings is not None and job.settings.recipe.name.endswith("cifar"):
            pretrained = ("efficientnet-end",) if job.ids == ("transfer-cifar",) else ()
            assert job.settings.recipe.model in ("cifar-net", "resnet18", "hidden-1000", *pretrained), job.about


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="no SIGSTOP")
def test_a_queue_is_paused_killed_and_goes_on(tmp_path, monkeypatch):
    import pickle

    some = jobs(2)
    (tmp_path / "jobs").write_bytes(pickle.dumps(some))
    script = tmp_path / "work_off.py"
    script.write_text(QUEUE)
    folder = tmp_path / "queue"
    queue = Queue(folder, folder / "trainings", folder / "out")
    command = [sys.executable, str(script), str(tmp_path / "jobs"), str(folder)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("begun: seed 1")
            wait_for(lambda: any((folder / "unfinished").glob("*/run/config.toml")))
            queue.pause_file.touch()
            assert process.stdout.readline().startswith("paused")
            time.sleep(0.2)
            before = written(folder)
            time.sleep(1.0)
            assert written(folder) == before
            monkeypatch.setattr(queue_module, "all_jobs", lambda: some)
            assert "paused" in queue.status()
            assert "0 of 2 done, 2 left" in queue.status()
        finally:
            # Killed while it is paused: the worker must end all the same, and the training go on from its checkpoint.
            process.kill()
    assert "not running" in queue.status()
    queue.pause_file.unlink()
    ended = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert ended.returncode == 0, ended.stderr
    assert [job.name for job in some if not (folder / "trainings" / f"{job.name}.json").is_file()] == []
    assert "2 of 2 done, 0 left" in queue.status()


def wait_for(is_true, seconds=300.0):  # the worker has the lowest priority, and the machine may be busy
    until = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < until
        time.sleep(0.05)


def written(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_what_measures_time_is_left_to_a_quiet_machine(tmp_path, monkeypatch):
    assert {"speed-jl", "sorting-price"} & {name for job in all_jobs() for name in job.ids} == set()
    monkeypatch.setattr(queue_module.result_store, "SHIPPED", tmp_path)
    queue = Queue(tmp_path, tmp_path / "trainings", tmp_path / "out")
    for name in ("speed-jl", "sorting-price"):
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / f"{name}.json").write_text('{"size": "quick"}')
    assert "`sordino lab run sorting-price speed-jl --full`" in queue.status()
    (tmp_path / "out" / "speed-jl.json").write_text('{"size": "full"}')
    assert "speed-jl" not in queue.status()


def test_the_status_finds_the_folder_that_the_last_queue_was_given(tmp_path, monkeypatch, capsys):
    some = jobs(1, steps=20)
    monkeypatch.setattr(queue_module, "all_jobs", lambda: some)
    monkeypatch.setattr(result_store, "cache_folder", lambda: tmp_path)
    assert main(["lab", "queue", "run", "--trainings", str(tmp_path / "elsewhere")]) == 0
    assert len(list((tmp_path / "elsewhere").glob("*.json"))) == 1
    capsys.readouterr()
    assert main(["lab", "queue", "status"]) == 0
    assert "1 of 1 done, 0 left" in capsys.readouterr().out


def test_status_needs_no_queue_that_runs(tmp_path, monkeypatch):
    monkeypatch.setattr(queue_module, "all_jobs", lambda: jobs(1))
    said = Queue(tmp_path, tmp_path / "trainings", tmp_path / "out").status()
    assert "0 of 1 done, 1 left" in said
    assert "not running" in said
    assert os.listdir(tmp_path) == []


def test_two_processes_do_not_work_off_one_queue(tmp_path, monkeypatch):
    monkeypatch.setattr(queue_module, "all_jobs", list)
    queue = Queue(tmp_path, tmp_path / "trainings", tmp_path / "out")
    with open(queue.lock_file, "ab") as file:
        lock_file(file)
        assert "running" in queue.status().splitlines()[-1]
        with pytest.raises(ValueError, match="another process works off this queue"):
            queue.run(1, print)
    assert queue.run(1, print) == 0
    assert "not running" in queue.status()


def test_a_killed_queue_is_not_taken_for_running_where_its_number_is_another_program_s(tmp_path, monkeypatch):
    monkeypatch.setattr(queue_module, "all_jobs", lambda: jobs(1))
    queue = Queue(tmp_path, tmp_path / "trainings", tmp_path / "out")
    queue.lock_file.touch()
    queue.state_file.write_text(json.dumps({"pid": os.getpid(), "paused": False, "running": ["seed 0"]}))
    assert "not running" in queue.status()


def test_a_queue_that_was_interrupted_says_how_it_goes_on(tmp_path, monkeypatch):
    def interrupt():
        raise KeyboardInterrupt

    monkeypatch.setattr(queue_module, "all_jobs", interrupt)
    said = []
    with pytest.raises(KeyboardInterrupt):
        Queue(tmp_path, tmp_path / "trainings", tmp_path / "out").run(1, said.append)
    assert said == ["stopped; what was finished is kept, and `sordino lab queue run` goes on from there"]


@pytest.mark.parametrize("wish", [["queue", "run"], ["run", "lr-cosine"]])
def test_no_process_at_all_is_refused(wish, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("SORDINO_CACHE", str(tmp_path))
    monkeypatch.setattr(queue_module, "all_jobs", list)
    assert main(["lab", *wish, "--processes", "0", "--out", str(tmp_path)]) == 2
    assert "processes=0: need 1 or more" in capsys.readouterr().err
