"""Files that are there whole or not at all, also after a crash: written beside, flushed to the disk, then moved in."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

_PART = ".part-"


def write(path: Path, content: bytes | str) -> None:
    """Replace a file in one move; whoever reads it sees the old content or the new."""
    part = path.with_name(f"{_PART}{path.name}")
    try:
        _flushed(part, content.encode() if isinstance(content, str) else content)
        os.replace(part, path)
    except BaseException:
        part.unlink(missing_ok=True)
        raise
    flush_folder(path.parent)


def write_folder(path: Path, files: Mapping[str, bytes]) -> None:
    """Make a new folder with all of these files in one move; readable by its owner only."""
    part = path.with_name(f"{_PART}{path.name}")
    shutil.rmtree(part, ignore_errors=True)  # left by a crash
    try:
        part.mkdir(mode=0o700)
        for name, content in files.items():
            _flushed(part / name, content)
        flush_folder(part)
        if path.exists():
            shutil.rmtree(path)
        os.rename(part, path)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    flush_folder(path.parent)


def flush_folder(path: Path) -> None:
    """Names made, moved or removed in a folder reach the disk; Windows has no such call and does it in its own time."""
    if sys.platform == "win32":
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_part(path: Path) -> bool:
    """Whether this was being written when the process died."""
    return path.name.startswith(_PART)


def _flushed(path: Path, content: bytes) -> None:
    with open(path, "wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
