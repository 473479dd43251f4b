"""Writes files that are complete or absent, even after a crash.

A file is written under a temporary name beside its place, flushed to the disk, and then moved to its place in one
step.
"""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

_PART = ".part-"


def write_file(path: Path, content: bytes | str) -> None:
    """Replaces a file atomically, in one move, so that a reader sees either the old content or the new one."""
    # The temporary file is in the same folder: a move to another file system is not possible in one step.
    temporary_path = path.with_name(f"{_PART}{path.name}")
    try:
        _write_flushed(temporary_path, content.encode() if isinstance(content, str) else content)
        os.replace(temporary_path, path)
    except BaseException:
        # Whatever stopped the writing, an interrupt included, leaves no part of a file behind.
        temporary_path.unlink(missing_ok=True)
        raise
    # The move itself reaches the disk with its folder; without this a power cut could bring back the old content.
    flush_folder(path.parent)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Creates a new folder with all of these files atomically, in one move; only its owner can read it."""
    # Everything is prepared under a temporary name. A crash leaves only that, and the next call removes it.
    temporary_folder = path.with_name(f"{_PART}{path.name}")
    shutil.rmtree(temporary_folder, ignore_errors=True)  # left by a crash
    try:
        temporary_folder.mkdir(mode=0o700)
        for name, content in files.items():
            _write_flushed(temporary_folder / name, content)
        # The content is on the disk before the move makes it visible under its final name.
        flush_folder(temporary_folder)
        if path.exists():
            shutil.rmtree(path)
        os.rename(temporary_folder, path)
    except BaseException:
        shutil.rmtree(temporary_folder, ignore_errors=True)
        raise
    flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Waits until names of files created, moved or removed in a folder are on the disk, so that atomic writes survive a
    crash; does nothing on Windows, which has no such call.
    """
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_temporary(path: Path) -> bool:
    """Returns whether a path is a temporary one whose writing was interrupted when the process died."""
    return path.name.startswith(_PART)


def _write_flushed(path: Path, content: bytes) -> None:
    """Writes a file and waits until its content is on the disk, before it is moved atomically to its place."""
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
