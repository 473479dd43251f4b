"""Checkpoints of a run: folders with checksums, complete or absent; the last two are kept.

    checkpoints/start/                                the one before the first step, for `sordino audit replay`
    checkpoints/step-00000320/state.json            ledger, position, history, optimizer numbers
                              tensors.safetensors   parameters, buffers, optimizer state, average
                              SHA256SUMS            of both; `sha256sum -c SHA256SUMS` checks them too
    checkpoints/ledger-head.json                    the end of the ledger, see write_ahead.py

A checkpoint whose sums do not match, or that cannot be read, is passed over, by name, for the one before it.

Privacy: a checkpoint does not hold the key of the noise, which is in a file of its own (noise_key.py). Where streams
stand, and what a sampler remembers of the records, is encrypted under that key. Only its owner can read the folder.
"""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import safetensors.torch
from torch import Tensor

from sordino.app import atomic_files
from sordino.state_packing import pack, unpack

FORMAT = 1
CHECKPOINTS_KEPT = 2
START = "start"
_STATE, _TENSORS, _CHECKSUMS = "state.json", "tensors.safetensors", "SHA256SUMS"
_NAME = re.compile(r"step-(\d{8,})")


class DamagedCheckpoint(ValueError):
    """Raised for a checkpoint that cannot be trusted; the message says why."""


class NoCheckpoint(ValueError):
    """Raised for a folder without a usable checkpoint."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """Everything a run needs to go on, except the noise key."""

    step: int
    state: Mapping[str, Any]  # JSON-like, with tensors anywhere


def save_checkpoint(folder: Path, checkpoint: Checkpoint) -> Path:
    """Writes a checkpoint of a run, then removes all but the last two; if writing fails, earlier ones are untouched."""
    # Numbers and text go to JSON, tensors to safetensors; neither can run code when it is read.
    tensors: dict[str, Tensor] = {}
    tree = pack(checkpoint.state, "", tensors)
    state = json.dumps({"format": FORMAT, "step": checkpoint.step, "state": tree}, allow_nan=False)
    content = {_STATE: state.encode(), _TENSORS: safetensors.torch.save(_unshare_memory(tensors))}
    sums = "".join(f"{hashlib.sha256(value).hexdigest()}  {name}\n" for name, value in content.items())
    # The folder appears in one move, after all its bytes are on the disk.
    path = folder / f"step-{checkpoint.step:08d}"
    atomic_files.write_folder(path, {**content, _CHECKSUMS: sums.encode()})
    if checkpoint.step == 0 and not (folder / START).exists():
        atomic_files.write_folder(folder / START, {**content, _CHECKSUMS: sums.encode()})
    # Only now that the new one is safe are older ones removed.
    for old in (*list_checkpoints(folder)[CHECKPOINTS_KEPT:], *filter(atomic_files.is_temporary, _entries(folder))):
        shutil.rmtree(old, ignore_errors=True)
    return path


def read_checkpoint(path: Path) -> Checkpoint:
    """Returns a checkpoint of a run whose every byte is what was written; raises DamagedCheckpoint otherwise."""
    try:
        content = {name: (path / name).read_bytes() for name in (_STATE, _TENSORS)}
        sums = (path / _CHECKSUMS).read_text("ascii")
    except (OSError, UnicodeError) as error:
        raise DamagedCheckpoint(f"{path.name}: cannot be read ({_one_line(error)})") from error
    # A changed byte would be trained on without notice, so every file is compared with its checksum first.
    for name, value in content.items():
        if f"{hashlib.sha256(value).hexdigest()}  {name}\n" not in sums:
            raise DamagedCheckpoint(
                f"{path.name}: {name} is not what was written (wrong checksum); it was cut short or changed"
            )
    return parse_checkpoint(content[_STATE], content[_TENSORS], path.name)


def parse_checkpoint(state: bytes, tensors: bytes, name: str) -> Checkpoint:
    """Returns a run's checkpoint from the bytes of its files, which are not trusted."""
    try:
        outer = json.loads(state)
    except (ValueError, RecursionError) as error:
        raise DamagedCheckpoint(f"{name}: {_STATE} is not JSON ({_one_line(error)})") from error
    # Another version may have meant something else by the same fields.
    if not isinstance(outer, dict) or outer.get("format") != FORMAT:
        given = outer.get("format") if isinstance(outer, dict) else None
        raise DamagedCheckpoint(
            f"{name}: format {given!r}, and this version reads {FORMAT}; use the version that wrote it"
        )
    # A boolean is an int in Python, and no step.
    step = outer.get("step")
    if not isinstance(step, int) or isinstance(step, bool) or step < 0 or not isinstance(outer.get("state"), dict):
        raise DamagedCheckpoint(f"{name}: {_STATE} has no step and state")
    try:
        return Checkpoint(step, unpack(outer["state"], safetensors.torch.load(tensors)))
    except Exception as error:  # the safetensors reader raises what it likes on foreign bytes
        raise DamagedCheckpoint(f"{name}: {_TENSORS} or {_STATE} cannot be read ({_one_line(error)})") from error


def read_latest(folder: Path) -> tuple[Checkpoint, list[str]]:
    """Returns the newest complete checkpoint of a run, and why newer ones were passed over."""
    passed_over: list[str] = []
    for path in list_checkpoints(folder):
        try:
            return read_checkpoint(path), passed_over
        except DamagedCheckpoint as error:
            passed_over.append(str(error))
    why = f": {'; '.join(passed_over)}" if passed_over else ""
    raise NoCheckpoint(f"{folder}: no checkpoint that can be used{why}; start the run anew")


def list_checkpoints(folder: Path) -> list[Path]:
    """Returns the paths of the checkpoints in a folder, newest first, damaged or not."""
    # By number and not by date, because a copied folder has other dates.
    named = [(int(match[1]), path) for path in _entries(folder) if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(named, reverse=True)]


def _entries(folder: Path) -> list[Path]:
    return list(folder.iterdir()) if folder.is_dir() else []


def _unshare_memory(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Returns the tensors of a run's checkpoint so that none share memory, as safetensors requires."""
    # The first of several views keeps the memory; the others are copied.
    seen: set[int] = set()
    result = {}
    for name, tensor in tensors.items():
        where = tensor.untyped_storage().data_ptr()
        result[name] = tensor.cpu().clone() if where in seen else tensor.cpu()  # files know no devices
        seen.add(where)
    return result


def _one_line(error: BaseException) -> str:
    return " ".join(str(error).split()) or type(error).__name__
