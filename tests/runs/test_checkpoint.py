"""Checkpoints: every byte or none, the one before where the last is damaged, no traceback whatever is in the files."""

import json
import os
from contextlib import suppress

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from sordino.app import atomic_files
from sordino.app.runs import directory
from sordino.app.runs.directory import Checkpoint, DamagedCheckpoint, NoCheckpoint
from sordino.state_packing import pack, unpack

FILES = ("state.json", "tensors.safetensors", "SHA256SUMS")


def state(value=1.0):
    parameter = torch.nn.Parameter(torch.full((3, 2), value))
    optimizer = torch.optim.Adam([parameter], lr=0.1, betas=(0.5, 0.9))
    parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    return {"optimizer": optimizer.state_dict(), "nothing": None, "far": float("inf"), "rows": [(1, "a"), {2: True}]}


def equal(one, other):
    if isinstance(one, torch.Tensor):
        return one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return list(one) == list(other) and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return type(one) is type(other) and len(one) == len(other) and all(map(equal, one, other))
    return type(one) is type(other) and one == other


def test_what_was_saved_is_read_back_with_its_types(tmp_path):
    saved = state()
    directory.save_checkpoint(tmp_path, Checkpoint(7, saved))
    found, passed = directory.read_latest(tmp_path)
    assert found.step == 7
    assert passed == []
    assert equal(saved, found.state)


def test_the_last_two_are_kept(tmp_path):
    for step in (1, 2, 30, 100_000_000):
        directory.save_checkpoint(tmp_path, Checkpoint(step, state()))
    assert [path.name for path in directory.list_checkpoints(tmp_path)] == ["step-100000000", "step-00000030"]


def test_the_folder_is_its_owners_alone(tmp_path):
    path = directory.save_checkpoint(tmp_path, Checkpoint(1, state()))
    assert path.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", ["flipped", "cut", "empty", "missing", "longer"])
def test_a_damaged_checkpoint_is_passed_over_by_name_for_the_one_before(tmp_path, name, damage):
    directory.save_checkpoint(tmp_path, Checkpoint(1, state(1.0)))
    last = directory.save_checkpoint(tmp_path, Checkpoint(2, state(2.0)))
    raw = bytearray((last / name).read_bytes())
    if damage == "flipped":
        raw[len(raw) // 2] ^= 1
    changed = {"cut": raw[:-3], "empty": b"", "longer": raw + b"x"}.get(damage, raw)
    (last / name).write_bytes(changed)
    if damage == "missing":
        (last / name).unlink()
    harmless = name == "SHA256SUMS" and damage in ("longer",)  # the sums of both files are still there
    found, passed = directory.read_latest(tmp_path)
    assert found.step == (2 if harmless else 1)
    assert harmless or passed[0].startswith("step-00000002: ")


def test_with_no_whole_checkpoint_the_reasons_are_said(tmp_path):
    last = directory.save_checkpoint(tmp_path, Checkpoint(2, state()))
    (last / "state.json").write_text("{}")
    with pytest.raises(NoCheckpoint, match="wrong checksum"):
        directory.read_latest(tmp_path)
    with pytest.raises(NoCheckpoint, match="start the run anew"):
        directory.read_latest(tmp_path / "nowhere")


def test_another_format_is_refused_by_number():
    with pytest.raises(DamagedCheckpoint, match="format 99, and this version reads 1"):
        directory.parse_checkpoint(json.dumps({"format": 99, "step": 1, "state": {}}).encode(), b"", "step")


def test_a_failed_write_leaves_what_was_there(tmp_path, monkeypatch):
    directory.save_checkpoint(tmp_path, Checkpoint(1, state()))
    (tmp_path / "note").write_text("old")

    def full(descriptor):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        directory.save_checkpoint(tmp_path, Checkpoint(2, state()))
    with pytest.raises(OSError, match="No space"):
        atomic_files.write_file(tmp_path / "note", "new")
    assert (tmp_path / "note").read_text() == "old"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["note", "step-00000001"]


def test_what_cannot_be_saved_is_named():
    with pytest.raises(TypeError, match="optimizer/hook: a function cannot be saved"):
        pack({"hook": lambda: 0}, "optimizer", {})


keys = st.text(max_size=4) | st.integers(-3, 3)
leaves = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
trees = st.recursive(
    leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(keys, inner, max_size=3), max_leaves=8
)


@given(trees)
@settings(deadline=None)
def test_any_tree_survives(tree):
    tensors = {}
    assert equal(tree, unpack(json.loads(json.dumps(pack(tree, "", tensors))), tensors))


@given(st.binary(max_size=60) | trees.map(lambda tree: json.dumps(tree).encode()), st.binary(max_size=60))
@settings(deadline=None)
def test_foreign_bytes_are_damaged_and_nothing_else(state, tensors):
    with pytest.raises(DamagedCheckpoint):
        directory.parse_checkpoint(state, tensors, "step")


@given(trees, st.sampled_from(["@tensor", "@tuple", "@pairs", "@float", "@other"]))
@settings(deadline=None)
def test_a_state_with_foreign_marks_is_read_or_damaged(tree, mark):
    raw = json.dumps({"format": 1, "step": 1, "state": {"a": {mark: tree}}}).encode()
    with suppress(DamagedCheckpoint):
        directory.parse_checkpoint(raw, b"", "step")
