"""A damaged ledger never makes a run cheaper: it is refused, or everything it may have said is charged."""

import json
import os
import random
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

import sordino
from sordino.app.runs import directory, training_loop, write_ahead
from sordino.app.runs.fit import resume
from sordino.app.runs.progress_view import Silent
from sordino.events import Repeat, Together
from sordino.private import Private
from tests.runs.cut_off import COMMAND, FLAGS, STEPS, TINY, Crash, CrashesAt, crashed, elsewhere
from tests.untested import untested

NAME = "ledger.jsonl"
HEAD = "checkpoints/ledger-head.json"
AT = 13
"""The step after which the run that is damaged here was killed."""


@pytest.fixture(autouse=True, scope="module")
def what_is_tested_here():
    """The ledger: the standing test has tests of its own."""
    with untested():
        yield


@contextmanager
def counted():
    """Inside, every release is counted by its bits: the same noise on the same sum is one release."""
    seen = set()
    right = Private.backward

    def backward(private, lot):
        losses = right(private, lot)
        seen.add(b"".join(p.grad.numpy().tobytes() for p in private._model.parameters() if p.grad is not None))
        return losses

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Private, "backward", backward)
        yield seen


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """A run that was killed, the run of somebody else, and the releases of the first."""
    folder = tmp_path_factory.mktemp("killed")
    given = {"seed": None}
    with counted() as released:
        crashed(folder / "run", AT, **given)
    crashed(folder / "other", AT, **given)
    assert len(released) == AT
    return folder / "run", folder / "other", frozenset(released)


def charged(event):
    """How many releases an event pays for."""
    if isinstance(event, Together):
        return sum(map(charged, event.events))
    return event.count * charged(event.event) if isinstance(event, Repeat) else 1


def lines_of(path):
    return path.read_bytes().splitlines(keepends=True)


def damages(path, other):
    """What disks, crashes, editors and people do to a file, by name; None: the file is gone."""
    raw, lines = path.read_bytes(), lines_of(path)
    ends = [sum(map(len, lines[:i])) for i in range(len(lines) + 1)]
    found = {
        "nothing": raw,
        "empty": b"",
        "gone": None,
        "zeroed": bytes(len(raw)),
        "a newline": b"\n",
        "spaces": b"  \n",
    }
    found |= {"of another run": (other / NAME).read_bytes(), "twice": raw + raw, "not text": b"\xff\xfe" * 40}
    for i, line in enumerate(lines):
        start, end = ends[i], ends[i + 1]
        found[f"cut before line {i}"] = raw[:start]
        found[f"cut in line {i}"] = raw[: start + len(line) // 2]
        found[f"cut before the end of line {i}"] = raw[: end - 1]
        found[f"line {i} zeroed"] = raw[:start] + bytes(len(line)) + raw[end:]
        found[f"zeroed from line {i}"] = raw[:start] + bytes(len(raw) - start)
        found[f"line {i} left out"] = raw[:start] + raw[end:]
        found[f"line {i} twice"] = raw[:end] + raw[start:]
        found[f"without the end of line {i}"] = raw[: end - 1] + raw[end:]
        if i + 1 < len(lines):
            found[f"lines {i} and {i + 1} exchanged"] = raw[:start] + lines[i + 1] + line + raw[ends[i + 2] :]
        for key in (b'"upto": ', b'"lineage": ', b'"step": ', b'"format": '):
            if key in line:
                changed = line.replace(key, key + b"9", 1), line.replace(key, key + b"0x", 1)
                found |= {
                    f"{key.decode()} of line {i}, {n}": raw[:start] + c + raw[end:] for n, c in enumerate(changed)
                }
        smaller = line.replace(b'"upto": 15', b'"upto": 10')
        if smaller != line:
            found[f"a smaller mark in line {i}"] = raw[:start] + smaller + raw[end:]
    chance = random.Random(0)
    for number in range(60):
        at, bit = chance.randrange(len(raw)), chance.randrange(8)
        found[f"bit {bit} of byte {at} ({number})"] = raw[:at] + bytes([raw[at] ^ 1 << bit]) + raw[at + 1 :]
    return found


def outcome(folder, released):
    """What becomes of a run that goes on: None if it is refused, else releases that nobody paid for."""
    with counted() as more:
        try:
            history = resume(folder, Silent())
        except ValueError as error:
            if "ledger" not in str(error):
                raise
            return None
    return len(released | more) - charged(history.claim.event)


def test_no_damage_makes_a_run_cheaper(killed, tmp_path, monkeypatch):
    run, other, released = killed
    elsewhere(monkeypatch, torch="1.0")  # nothing can be replayed, so every release that is made again is a new one
    accepted, cheaper = [], {}
    for number, (name, raw) in enumerate(damages(run / NAME, other).items()):
        folder = tmp_path / str(number)
        shutil.copytree(run, folder)
        (folder / NAME).unlink()
        if raw is not None:
            (folder / NAME).write_bytes(raw)
        unpaid = outcome(folder, released)
        if unpaid is not None:
            accepted.append(name)
            if unpaid > 0:
                cheaper[name] = unpaid
        shutil.rmtree(folder)
    assert not cheaper
    assert number > 250
    assert "nothing" in accepted
    notes = len([1 for line in lines_of(run / NAME)[-AT:] if b'"step"' in line])
    assert len(accepted) < 5 * notes  # what reached the disk last is only who came after whom: all else is refused


@pytest.mark.parametrize("damage", ["gone", "empty", "of another run", "with the ledger of another run", "cut"])
def test_a_damaged_head_is_refused(killed, tmp_path, damage):
    run, other, released = killed
    shutil.copytree(run, tmp_path / "run")
    path = tmp_path / "run" / HEAD
    raw = {"empty": b"", "cut": path.read_bytes()[:-9]}.get(damage, (other / HEAD).read_bytes())
    path.unlink()
    if damage != "gone":
        path.write_bytes(raw)
    if damage == "with the ledger of another run":
        shutil.copyfile(other / NAME, tmp_path / "run" / NAME)
    assert outcome(tmp_path / "run", released) is None


def test_a_refusal_names_the_cure(killed, tmp_path):
    shutil.copytree(killed[0], tmp_path / "run")
    (tmp_path / "run" / NAME).write_bytes(b"")
    with pytest.raises(ValueError, match="from a backup, or start a new run in another folder") as said:
        resume(tmp_path / "run")
    assert "privacy.json" in str(said.value)


def test_a_ledger_of_version_0_2_is_gone_on_with_and_pays_for_lines_that_may_be_missing(killed, tmp_path, monkeypatch):
    """It kept no head. Whatever is cut from its end, the block after its newest checkpoint is charged."""
    run, _, released = killed
    elsewhere(monkeypatch, torch="1.0")
    lines = [json.loads(line) for line in lines_of(run / NAME)][1:]
    for left in range(1, len(lines) + 1, 4):
        folder = tmp_path / str(left)
        shutil.copytree(run, folder)
        (folder / HEAD).unlink()
        chain, text = "", ""
        for line in lines[:left]:
            old = {**line, "format": 1} if "format" in line else line
            chain = old[write_ahead.CHAIN] = write_ahead.chain_digest(chain, old)
            text += json.dumps(old) + "\n"
        (folder / NAME).write_text(text)
        for path in directory.list_checkpoints(folder / "checkpoints"):
            saved = directory.read_checkpoint(path)
            state = {name: value for name, value in saved.state.items() if name != "entered"}
            directory.save_checkpoint(folder / "checkpoints", directory.Checkpoint(saved.step, state))
        unpaid = outcome(folder, released)
        assert (unpaid is None) == (left == 1)  # with one line left nobody can say that it is such a ledger
        assert unpaid is None or unpaid <= 0


@pytest.mark.parametrize("step", [3, 7, 13, 18])
def test_after_a_crash_elsewhere_every_step_that_may_have_been_released_is_charged(tmp_path, monkeypatch, step):
    """Not one fewer: releases of both processes are counted by their bits."""
    with counted() as released:
        crashed(tmp_path, step, seed=None)
    mark = write_ahead.read_entries(tmp_path).upto
    elsewhere(monkeypatch, torch="1.0")
    view = CrashesAt(-1)
    with counted() as more:
        history = resume(tmp_path, view)
    assert len(released) == step
    assert not released & more
    assert len(more) == STEPS - mark  # those below the mark are left out, all of them
    assert charged(history.claim.event) == STEPS >= len(released | more)


def test_killed_again_and_again_elsewhere_a_run_never_releases_more_than_it_charges(tmp_path, monkeypatch):
    released = set()
    with counted() as seen:
        crashed(tmp_path, 4, seed=None)
    released |= seen
    for number, step in enumerate((8, 13, 17)):
        elsewhere(monkeypatch, torch=f"1.{number}")
        with counted() as seen, pytest.raises(Crash):
            resume(tmp_path, CrashesAt(step))
        released |= seen
    elsewhere(monkeypatch, torch="2.0")
    with counted() as seen:
        history = resume(tmp_path)
    assert charged(history.claim.event) >= len(released | seen)


def test_without_its_key_a_run_goes_on_with_a_new_one_and_charges_what_may_have_been_released(tmp_path):
    with counted() as released:
        crashed(tmp_path, AT, seed=None)
    (tmp_path / "SECRET-noise-key-do-not-share.json").unlink()
    view = CrashesAt(-1)
    with counted() as more:
        history = resume(tmp_path, view)
    assert "its noise key is gone" in view.said[0]
    assert charged(history.claim.event) >= len(released | more)
    assert training_loop.SAME_RECORDS in history.claim.rests_on


class PowerCut:
    """A disk: what a file holds after the power fails is what was there when it was last flushed."""

    def __init__(self, monkeypatch, folder):
        self.kept, self.folder, fsync = {}, folder, os.fsync

        def flushed(descriptor):
            fsync(descriptor)
            path = os.readlink(f"/proc/self/fd/{descriptor}")
            if os.path.isfile(path):
                with open(path, "rb") as file:
                    self.kept[os.path.realpath(path)] = file.read()

        monkeypatch.setattr(os, "fsync", flushed)

    def mark(self):
        """Steps below this may have been released, as the disk has it."""
        raw = self.kept.get(os.path.realpath(self.folder / NAME))
        if raw is None:  # moved in whole, under another name
            raw = next((kept for path, kept in self.kept.items() if path.endswith(f".part-{NAME}")), b"")
        marks = [json.loads(line) for line in raw.splitlines()]
        return next(mark["upto"] for mark in reversed(marks) if "upto" in mark)

    def head(self):
        raw = next(kept for path, kept in self.kept.items() if path.endswith("ledger-head.json"))
        return json.loads(raw)[write_ahead.CHAIN]


@pytest.mark.skipif(sys.platform != "linux", reason="asks /proc which file a descriptor is")
def test_when_the_power_fails_the_disk_says_what_may_have_been_released(tmp_path, monkeypatch):
    disk, steps = PowerCut(monkeypatch, tmp_path), []
    right = Private.backward

    def backward(private, lot):
        assert disk.mark() > lot.step  # before anything of it is released
        chains = [json.loads(line)[write_ahead.CHAIN] for line in (tmp_path / NAME).read_bytes().splitlines()]
        assert disk.head() in chains
        steps.append(lot.step)
        return right(private, lot)

    monkeypatch.setattr(Private, "backward", backward)
    sordino.fit("spiral", out=tmp_path, **TINY)
    assert steps == list(range(STEPS))


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_two_starts_in_one_folder_the_second_is_refused_and_the_first_is_untouched(tmp_path):
    """Real processes: the second comes while the first still reads its data, when nothing is on the disk yet."""
    out = tmp_path / "run"
    slow = (
        "import sys; from sordino.app.runs import fit as module; right = module.assemble_job\n"
        "def assemble_job(*given):\n"
        "    print('reading', flush=True); sys.stdin.readline(); return right(*given)\n"
        "module.assemble_job = assemble_job\n"
        "from sordino.app.cli.main import main\n"
        "sys.exit(main(sys.argv[1:]))"
    )
    train = ["train", "spiral", "--out", str(out), *FLAGS]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    first = subprocess.Popen([sys.executable, "-c", slow, *train], **pipes)
    assert first.stdout.readline().strip() == "reading"
    before = files_of(out)
    second = subprocess.run(
        [*COMMAND, *train, "--learning-rate", "0.5"], capture_output=True, text=True, check=False, timeout=300
    )
    assert second.returncode not in (0, None)
    assert "another process has begun a run here" in second.stderr
    assert files_of(out) == before
    first.communicate("go on\n", timeout=300)
    assert first.returncode == 0
    assert "learning_rate = 0.5" not in (out / directory.CONFIG).read_text()
    done = files_of(out)
    with pytest.raises(ValueError, match="holds something already"):
        sordino.fit("spiral", out=out, **TINY)
    assert files_of(out) == done


def test_a_folder_that_holds_something_is_left_without_a_trace(tmp_path):
    (tmp_path / "letter.txt").write_text("mine")
    with pytest.raises(ValueError, match="holds something already"):
        sordino.fit("spiral", out=tmp_path, **TINY)
    assert [path.name for path in tmp_path.iterdir()] == ["letter.txt"]


def test_a_start_that_died_before_it_wrote_anything_does_not_block_the_next(tmp_path):
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / ".lock").touch()
    assert sordino.fit("spiral", out=tmp_path, **TINY).finished


def test_killed_between_the_first_two_files_a_run_begins_anew(tmp_path):
    """The ledger is there with its first line, its head and the first checkpoint are not."""
    crashed(tmp_path, 1)
    first = lines_of(tmp_path / NAME)[0]
    shutil.rmtree(tmp_path / "checkpoints")
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / NAME).write_bytes(first)
    assert resume(tmp_path).finished
