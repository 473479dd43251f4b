"""A run that is cut off goes on: the same bits where they can be repeated, charged and left out where not."""

import json
import os
import signal
import traceback

import pytest
import torch

import sordino
from bench.resilience import are_same
from sordino.app.runs import directory
from sordino.app.runs import run_data as data
from sordino.app.runs.directory import Run
from sordino.app.runs.fit import resume
from sordino.app.runs.progress_view import Silent
from sordino.app.runs.training_loop import REPLAY
from sordino.app.runs.write_ahead import RunIsBusy, WriteAheadLedger
from sordino.ledger.claims import NoGuarantee
from sordino.noise_key import read_secret
from sordino.per_sample.physical_batch import choose_by_shapes
from sordino.rng.streams import Rng
from tests.runs.cut_off import STEPS, TINY, Asks, Crash, CrashesAt, charged, crashed, edited, elsewhere, resumed


@pytest.mark.parametrize("step", [1, 5, 7, 16, STEPS])
def test_a_replay_gives_the_same_bits_and_the_same_claim(tmp_path, calm, step):
    crashed(tmp_path, step)
    after, _ = resumed(tmp_path)
    assert all(are_same(calm.run, tmp_path).values())
    assert after.claim == calm.claim
    assert [row.test_accuracy for row in after.rows] == [row.test_accuracy for row in calm.rows]
    assert Run(tmp_path).read_rows() == list(after.rows)


@pytest.mark.parametrize(
    "given",
    [
        {"sampler": "shuffle"},
        {"sampler": "balls-in-bins"},
        {"method": "adaptive-quantile"},
        {"method": "scheduled", "ema": 0.9, "schedule": "cosine"},
        {"non_private": True},
        {"method": "jl"},
        {"optimizer": "adam-corrected"},
        {"normalise": 20.0, "pca": 10.0, "components": 2},
    ],
    ids=str,
)
def test_what_a_run_has_besides_resumes_too(tmp_path, given):
    whole = sordino.fit("spiral", out=tmp_path / "whole", **{**TINY, **given})
    crashed(tmp_path / "cut", 13, **given)
    after, _ = resumed(tmp_path / "cut")
    assert all(are_same(tmp_path / "whole", tmp_path / "cut").values())
    assert after.claim == whole.claim


PICTURES = {"features": "none", "normalise": None, "rate": 0.3, "steps": 6, "checkpoint_every": 2}


@pytest.mark.parametrize("model", ["mnist-cnn", "cifar-net"])
def test_convolutions_resume_bit_equal_whatever_a_stopwatch_says(tmp_path, monkeypatch, model):
    """Formulas differ in rounding: a run takes none from a stopwatch."""
    few = sordino.app.data.digits(120, 20)
    monkeypatch.setattr(sordino.app.data, "digits", lambda: few)
    given = {"model": model, "seed": 5, "learning_rate": 0.1, "evaluate_every": 6, **PICTURES}
    sordino.fit("digits", out=tmp_path / "whole", **given)
    clock = iter(range(10**9))
    last_wins = "sordino.per_sample.formulas.formula_timing.read_clock", lambda device: -next(clock)
    monkeypatch.setattr(*last_wins)
    with pytest.raises(Crash):
        sordino.fit("digits", out=tmp_path / "cut", view=CrashesAt(5), **given)
    resumed(tmp_path / "cut")
    assert all(are_same(tmp_path / "whole", tmp_path / "cut").values())


@pytest.mark.parametrize(("lot", "most"), [(10.0, 23), (240.0, 302), (4000.0, 400), (1e7, 4096)])
def test_lots_are_cut_into_parts_of_one_size(lot, most):
    model = torch.nn.Sequential(torch.nn.Linear(1000, 4000), torch.nn.Linear(4000, 1000))  # 24 kB a record
    assert choose_by_shapes(model, torch.zeros(1, 1000), lot) <= most
    assert choose_by_shapes(model, torch.zeros(1, 1000), lot) * max(1, round(lot / 200)) >= min(lot, 4096)


def test_the_private_normalisation_is_replayed_and_charged_once(tmp_path):
    given = {**TINY, "normalise": 20.0}
    whole = sordino.fit("spiral", out=tmp_path / "whole", **given)
    crashed(tmp_path / "cut", 2, **given)
    after, _ = resumed(tmp_path / "cut")
    assert all(are_same(tmp_path / "whole", tmp_path / "cut").values())
    assert after.claim == whole.claim
    assert sordino.events.to_json(after.claim.event)["events"][0] == {"type": "Gaussian", "multiplier": 20.0}


def test_steps_are_entered_before_they_are_released(tmp_path):
    class Looks(Silent):
        def show_step(self, step, spent):
            with open(tmp_path / "ledger.jsonl") as file:
                marks = [json.loads(line) for line in file]
            assert next(mark["upto"] for mark in reversed(marks) if "upto" in mark) >= step

    assert sordino.fit("spiral", out=tmp_path, view=Looks(), **TINY).finished


def test_where_a_replay_would_not_be_the_same_the_steps_are_charged_and_left_out(tmp_path, monkeypatch, calm):
    crashed(tmp_path, 13)
    elsewhere(monkeypatch, torch="1.0")
    after, said = resumed(tmp_path)
    assert "5 steps after the checkpoint are charged and left out" in said[0]
    assert "is 1.0" in said[0]
    assert charged(after.claim) == charged(calm.claim)  # the plan's: what was lost was charged, not done again
    assert not are_same(calm.run, tmp_path)["parameters"]
    assert [row.step for row in after.rows] == [4, 8, 16, 20]


def test_the_noise_of_steps_that_were_left_out_is_never_used_again(tmp_path, monkeypatch):
    crashed(tmp_path, 13, keep_key=True)
    before = read_secret(tmp_path)
    elsewhere(monkeypatch, code="other")
    resumed(tmp_path)
    after = read_secret(tmp_path)
    assert before["noise"] == Rng(bytes.fromhex(before["root"])).child("noise").state_dict()["key"]
    assert after["noise"] != before["noise"]
    assert after["forward"] != before["forward"]
    assert directory.read_latest(tmp_path / "checkpoints")[0].step == STEPS


def test_a_run_stopped_in_good_order_has_nothing_to_leave_out(tmp_path, monkeypatch, calm):
    crashed(tmp_path, 13)
    resumed(tmp_path)
    elsewhere(monkeypatch, torch="1.0")
    after, said = resumed(tmp_path)
    assert said == []
    assert charged(after.claim) == charged(calm.claim)


def test_a_replay_that_comes_out_otherwise_has_no_guarantee(tmp_path):
    crashed(tmp_path, 13)

    def other(line):
        if line.get("step") == 12:
            line["parameters"] = "0" * 32

    edited(tmp_path / "ledger.jsonl", other)
    after, _ = resumed(tmp_path)
    assert after.claim == NoGuarantee(REPLAY)
    assert json.loads((tmp_path / "privacy.json").read_text())["claim"] == {"reason": REPLAY}


def test_a_killed_run_reports_at_least_what_it_spent(tmp_path, calm):
    crashed(tmp_path, 13)
    left = json.loads((tmp_path / "privacy.json").read_text())
    assert left["status"] == "running"
    assert left["claim"]["epsilon"] == calm.claim.epsilon


def test_a_run_that_was_stopped_and_then_killed_reports_at_least_what_it_spent(tmp_path, calm):
    """The claim it was stopped with is of its first seven steps; it goes on, so it must not stand."""
    sordino.fit("spiral", out=tmp_path, view=Asks(signal.SIGINT, 1), **TINY)
    stopped = json.loads((tmp_path / "privacy.json").read_text())
    with pytest.raises(Crash):
        resume(tmp_path, CrashesAt(18))
    left = json.loads((tmp_path / "privacy.json").read_text())
    assert (stopped["status"], left["status"]) == ("stopped", "running")
    assert stopped["claim"]["epsilon"] < left["claim"]["epsilon"] == calm.claim.epsilon
    assert left["claim"]["not_covered"] == list(calm.claim.not_covered)


def test_a_run_whose_claim_is_void_says_so_before_it_ends(tmp_path):
    class Writes(CrashesAt):
        def begin(self, job, done):
            self.model = job.problem.model

        def show_step(self, step, spent):
            if step == 6:
                with torch.no_grad():
                    next(self.model.parameters()).zero_()
            super().show_step(step, spent)

    with pytest.raises(Crash):
        sordino.fit("spiral", out=tmp_path, view=Writes(17), **TINY)
    left = json.loads((tmp_path / "privacy.json").read_text())
    assert left["status"] == "running"
    assert "was changed other than by an optimizer step" in left["claim"]["reason"]


def test_a_damaged_checkpoint_costs_its_steps_and_not_the_run(tmp_path, calm):
    crashed(tmp_path, 13)
    last = directory.list_checkpoints(tmp_path / "checkpoints")[0]
    os.truncate(last / "tensors.safetensors", 100)
    _, said = resumed(tmp_path)
    assert said[0].startswith("passed over step-00000010: tensors.safetensors is not what was written")
    assert all(are_same(calm.run, tmp_path).values())


def test_a_line_of_the_ledger_cut_short_was_never_acted_on(tmp_path, calm):
    crashed(tmp_path, 13)
    with open(tmp_path / "ledger.jsonl", "a") as file:
        file.write('{"lineage": 0, "up')
    resumed(tmp_path)
    assert all(are_same(calm.run, tmp_path).values())


@pytest.mark.parametrize("broken", ["not json\n", '{"lineage": 0, "upto": -1}\n', "[]\n", '{"lineage": 0}\n'])
def test_a_ledger_that_cannot_be_read_stops_everything(tmp_path, broken):
    crashed(tmp_path, 13)
    with open(tmp_path / "ledger.jsonl", "a") as file:
        file.write(broken)
    with pytest.raises(ValueError, match="so the run cannot go on"):
        resume(tmp_path)


def test_a_missing_ledger_stops_everything(tmp_path):
    crashed(tmp_path, 13)
    (tmp_path / "ledger.jsonl").unlink()
    with pytest.raises(ValueError, match="is missing"):
        resume(tmp_path)


def test_other_data_of_the_same_size_is_refused(tmp_path, monkeypatch):
    crashed(tmp_path, 13)
    spiral = data.spiral
    monkeypatch.setattr(data, "spiral", lambda n, seed=0: spiral(n, seed=seed + 10))
    with pytest.raises(ValueError, match="the training records are not those the run began with"):
        resume(tmp_path)


@pytest.mark.parametrize(
    ("before", "after"),
    [("records = 300", "records = 299"), ("steps = 20", "steps = 21"), ("bound = 1.0", "bound = 2.0")],
)
def test_a_changed_configuration_is_refused(tmp_path, before, after):
    crashed(tmp_path, 13)
    path = tmp_path / "config.toml"
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(ValueError, match=r"not (those|what) the run began with"):
        resume(tmp_path)


def test_one_process_at_a_time(tmp_path):
    crashed(tmp_path, 13)
    with WriteAheadLedger(tmp_path), pytest.raises(RunIsBusy, match="another process is training this run"):
        resume(tmp_path)


def test_a_finished_run_says_what_it_came_to(calm):
    again, _ = resumed(calm.run)
    assert again.claim == calm.claim
    assert again.finished


def test_killed_before_anything_was_released_a_run_begins_anew(tmp_path, calm):
    crashed(tmp_path, 1)
    for path in (*(tmp_path / "checkpoints").iterdir(), tmp_path / "ledger.jsonl"):
        os.rename(path, tmp_path.parent / f"{tmp_path.name}-{path.name}")
    resumed(tmp_path)
    assert all(are_same(calm.run, tmp_path).values())


def test_killed_at_any_write_before_its_first_step_a_run_goes_on_as_if_it_had_not_been(tmp_path, monkeypatch, calm):
    flush = os.fsync

    def train_until_write(number, folder):
        """Trains until the given number of writes has reached the disk; returns whether it died before its first step."""
        writes = iter(range(1, number + 1))

        def flush_or_die(descriptor):
            flush(descriptor)
            if next(writes) == number:
                raise Crash

        monkeypatch.setattr(os, "fsync", flush_or_die)
        view = CrashesAt(1)
        try:
            sordino.fit("spiral", out=folder, view=view, **TINY)
        except Crash as death:
            return "show_step" not in {frame.name for frame in traceback.extract_tb(death.__traceback__)}
        finally:
            monkeypatch.setattr(os, "fsync", flush)

    number, outcomes = 1, {}
    while train_until_write(number, folder := tmp_path / str(number)):
        # Without a configuration there is no run to go on with.
        if (folder / directory.CONFIG).exists():
            resumed(folder)
            outcomes[number] = are_same(calm.run, folder)
        number += 1
    assert len(outcomes) > 10
    assert {number: found for number, found in outcomes.items() if not all(found.values())} == {}
