"""A replay repeats every bit, and sees a step, a draw, a sum, a noise or an entry that is not as it should be."""

import json

import pytest

import sordino
from sordino.app.audits import replay_audit as module
from sordino.app.audits.replay_audit import ReplayResult, audit_by_replay
from sordino.app.cli.main import main
from sordino.app.runs import write_ahead

CHOSEN = (3, 17, 19)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("run")
    sordino.fit("spiral", steps=20, records=1500, noise_multiplier=1.0, keep_key=True, out=folder / "a")
    return folder / "a"


@pytest.fixture
def edited(run, tmp_path):
    """A copy of the run whose files may be changed."""
    import shutil

    shutil.copytree(run, tmp_path / "run")
    return tmp_path / "run"


def test_a_run_is_as_it_was_entered(run):
    found = audit_by_replay(run, choose=CHOSEN)
    assert found.passed, str(found)
    assert found.checked == list(CHOSEN)
    assert found.digests >= 17
    assert not found.not_tried
    assert found.farthest_sum < 1e-4
    assert found.farthest_noise < 1e-6


def test_other_means_than_the_fast_ones_were_used(run, monkeypatch):
    """The oracle is none if it is the same code: a wrong oracle must be seen."""
    right = module.measure_sum_error
    monkeypatch.setattr(module, "measure_sum_error", lambda training, indices, seen: right(training, indices[1:], seen))
    found = audit_by_replay(run, choose=CHOSEN[:1])
    assert "sum is" in found.wrong[0]


def test_steps_are_chosen_by_a_fresh_coin(run):
    one, other = (audit_by_replay(run, 5).checked for _ in range(2))
    assert one != other  # equal by chance once in 15,504 runs


def test_another_noise_is_seen(run, monkeypatch):
    from sordino.release import release

    right = release._noise_scale
    monkeypatch.setattr(release, "_noise_scale", lambda *a, **k: 0.999 * right(*a, **k))
    found = audit_by_replay(run, choose=(1,))
    assert any("noise is" in what for what in found.wrong)
    assert any("other parameters" in what for what in found.wrong)


def test_a_clip_a_two_thousandth_too_long_is_seen(run, monkeypatch):
    from sordino.clipping import clipping_rule

    right = clipping_rule.bound_weights
    monkeypatch.setattr(clipping_rule, "bound_weights", lambda *arguments: 1.0005 * right(*arguments))
    found = audit_by_replay(run, choose=(1,))
    assert any("sum is" in what for what in found.wrong)


def test_an_edited_line_breaks_the_chain(edited):
    path = edited / "ledger.jsonl"
    lines = path.read_text().splitlines()
    place = next(i for i, line in enumerate(lines) if '"step": 5' in line)
    entry = json.loads(lines[place])
    entry["parameters"] = "0" * 32
    lines[place] = json.dumps(entry)
    path.write_text("\n".join(lines) + "\n")
    found = audit_by_replay(edited, choose=(5,))
    assert f"ledger.jsonl:{place + 1}:" in found.wrong[0]
    assert any("other parameters" in what for what in found.wrong)


def test_the_chain_holds_over_a_whole_run(run):
    book = write_ahead.read_entries(run)
    assert book.first_broken_line is None
    assert sorted(book.digests) == list(range(21))


def test_a_claim_for_fewer_steps_is_seen(edited):
    path = edited / "privacy.json"
    said = json.loads(path.read_text())
    said["claim"]["event"]["count"] -= 1
    path.write_text(json.dumps(said))
    assert "charges 19 draws, and 20 steps" in audit_by_replay(edited, choose=(1,)).wrong[0]


def test_other_data_are_refused(edited, monkeypatch):
    from sordino.app.runs import run_data

    right = run_data.spiral
    monkeypatch.setattr(run_data, "spiral", lambda n, *, classes=3, seed=0: right(n, classes=classes, seed=seed + 5))
    with pytest.raises(ValueError, match="not those the run began with"):
        audit_by_replay(edited, choose=(1,))


def test_the_probability_of_passing_is_printed():
    text = str(ReplayResult(640, checked=list(range(20)), digests=640))
    assert "(1 − f)^20: 0.818 at 1 %, 0.122 at 10 %" in text


def test_the_command_keeps_what_it_found_and_the_report_shows_it(edited, capsys):
    from sordino.app.report import write

    write(edited)
    assert "Audits" not in (edited / "report.html").read_text()
    assert main(["audit", "replay", str(edited), "--steps", "2"]) == 0
    assert "2 of 20 steps taken apart" in capsys.readouterr().out
    assert "2 of 20 steps, chosen by a fresh coin" in (edited / "report.html").read_text()
