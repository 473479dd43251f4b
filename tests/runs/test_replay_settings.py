"""What may differ when a run goes on: a step is replayed only where every setting is what it was."""

import os
import signal

import pytest

import sordino
from bench.resilience import are_same
from sordino.app.runs import directory
from sordino.app.runs.fit import resume
from sordino.app.runs.recipe import FIELDS
from sordino.app.runs.settings import Options, find_changes
from sordino.noise_key import read_secret
from tests.runs.cut_off import STEPS, TINY, Asks, Crash, CrashesAt, charged, crashed, elsewhere, resumed


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("learning_rate = 0.1", "learning_rate = 0.05"),
        ("momentum = 0.5", "momentum = 0.9"),
        ("penalty = 0.01", "penalty = 0.02"),
        ("weight_decay = 0.02", "weight_decay = 0.0"),
        ('schedule = "constant"', 'schedule = "linear"'),
    ],
)
def test_steps_are_not_replayed_with_other_settings_but_charged_and_left_out(tmp_path, before, after):
    """The same noise on two sums would give away their difference."""
    given = {"learning_rate": 0.1, "momentum": 0.5, "penalty": 0.01, "optimizer": "adamw", "weight_decay": 0.02}
    given["keep_key"] = True
    calm = sordino.fit("spiral", out=tmp_path / "calm", **{**TINY, **given})
    crashed(tmp_path / "cut", 13, **given)
    path = tmp_path / "cut" / "config.toml"
    assert f"\n{before}\n" in path.read_text()
    path.write_text(path.read_text().replace(f"\n{before}\n", f"\n{after}\n"))
    old = read_secret(tmp_path / "cut")
    found, said = resumed(tmp_path / "cut")
    assert "5 steps after the checkpoint are charged and left out" in said[0]
    assert f"{before.partition(' ')[0]} was" in said[0]
    assert charged(found.claim) == charged(calm.claim)
    new = read_secret(tmp_path / "cut")
    assert all(new[name] != old[name] for name in ("noise", "forward"))


@pytest.mark.parametrize("sampler", ["shuffle", "balls-in-bins", "fixed-size"])
def test_what_is_left_out_of_a_pass_is_charged_with_it(tmp_path, monkeypatch, sampler):
    """The batches that follow are of the same order as those before: together they are one pass."""
    given = {"sampler": sampler}
    calm = sordino.fit("spiral", out=tmp_path / "calm", **{**TINY, **given})
    crashed(tmp_path / "cut", 13, **given)
    elsewhere(monkeypatch, torch="1.0")
    after, said = resumed(tmp_path / "cut")
    assert "charged and left out" in said[0]
    assert charged(after.claim) == charged(calm.claim)


@pytest.mark.parametrize("field", sorted({*FIELDS, *Options.__dataclass_fields__}))
def test_every_field_is_known_to_be_harmless_or_forbids_a_replay(field):
    """The table, read: whatever is not named as free counts."""
    another, adjusted = find_changes({"recipe": {field: 1}}, {"recipe": {field: 2}})
    harmless = {"name", "tuned", "accuracy", "spread", "seeds", "seconds", "delta", "budget", "show_private", "trace"}
    harmless |= {"report", "evaluate_every", "checkpoint_every", "keep_key", "strict"}
    assert bool(another or adjusted) == (field not in harmless)


@pytest.mark.parametrize(
    ("before", "after"), [("report = false", "report = true"), ("evaluate_every = 4", "evaluate_every = 2")]
)
def test_what_cannot_change_a_sum_may_change(tmp_path, calm, before, after):
    crashed(tmp_path, 13)
    path = tmp_path / "config.toml"
    path.write_text(path.read_text().replace(before, after))
    resumed(tmp_path)
    assert are_same(calm.run, tmp_path)["parameters"]


@pytest.mark.parametrize(
    ("before", "after"), [('optimizer = "adam"', 'optimizer = "sgd"'), ("init_seed = 0", "init_seed = 1")]
)
def test_another_run_is_refused_by_the_name_of_what_is_other(tmp_path, before, after):
    crashed(tmp_path, 13)
    path = tmp_path / "config.toml"
    assert before in path.read_text()
    path.write_text(path.read_text().replace(before, after))
    with pytest.raises(ValueError, match=f"{before.partition(' ')[0]} was .*put it back"):
        resume(tmp_path)


def test_after_steps_that_were_left_out_an_older_checkpoint_is_no_place_to_replay_from(tmp_path, monkeypatch):
    """Other steps were released since, from a key that is lost with the newer checkpoint: all of them are charged."""
    crashed(tmp_path, 13)
    elsewhere(monkeypatch, torch="1.0")
    with pytest.raises(Crash):
        resume(tmp_path, CrashesAt(18))
    newest, older = directory.list_checkpoints(tmp_path / "checkpoints")
    os.truncate(newest / "tensors.safetensors", 100)
    after, said = resumed(tmp_path)
    assert "passed over" in said[0]
    lost = STEPS - int(older.name.removeprefix("step-"))
    assert f"{lost} steps after the checkpoint are charged and left out" in said[1]
    assert "other steps were released after this checkpoint" in said[1]
    assert after.claim.event.count == STEPS


def test_a_run_that_goes_on_elsewhere_has_other_noise_even_if_nothing_was_lost(tmp_path, monkeypatch):
    sordino.fit("spiral", out=tmp_path, view=Asks(signal.SIGINT, 1), keep_key=True, **TINY)
    before = read_secret(tmp_path)
    elsewhere(monkeypatch, torch="1.0")
    after, said = resumed(tmp_path)
    assert not [text for text in said if "walks at random" not in text]
    assert after.claim.event.count == STEPS
    assert read_secret(tmp_path)["noise"] != before["noise"]
