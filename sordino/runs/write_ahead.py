"""The write-ahead ledger: `ledger.jsonl`, where steps are entered, and on the disk, before anything of them is released.

One JSON object per line, appended and flushed:

    {"format": 1, "lineage": 0, "upto": 40, "environment": {…}}   steps below 40 may have been released
    {"lineage": 0, "step": 40, "parameters": "9f…"}               the parameters after step 40, by their SHA-256
    {"lineage": 0, "upto": 52, "closed": true}                    stopped in good order: nothing past 52 was released

Steps are reserved in blocks that end where the next checkpoint is due, so a block costs one write to the disk.
Parameters are entered after every step, and every line ends with `chain`, a digest of itself and of the one before: whoever
knows the last one knows that no line was changed since. `sordino audit replay` runs steps again and compares.

Privacy: after a crash at any moment, what may have been released is what the last whole line says; a line cut short was
never acted on. A replay from the checkpoint repeats a release, which costs nothing: key, parameters and data are the
same, so its output is the same bits. Where parameters were entered they are compared; a lineage ends where a replay is not
possible.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from sordino.file_lock import Locked, lock
from sordino.runs import files

FORMAT = 1
NAME = "ledger.jsonl"
CHAIN = "chain"


class Busy(ValueError):
    """Another process is writing to the run."""


class Ahead:
    """The ledger file of one run, held by one process at a time."""

    def __init__(self, folder: Path, *, new: bool = False) -> None:
        self.path = folder / NAME
        self.lineage = 0
        self.upto = 0
        self.closed = True
        self.environment: dict[str, Any] = {}
        self._digests: dict[tuple[int, int], str] = {}
        self._chain = ""
        if new:
            self.path.touch()
        try:
            self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 (held for the life of the run)
        except FileNotFoundError:
            raise ValueError(f"{self.path}: missing; what was released is not known, so the run cannot go on") from None
        try:
            lock(self._file, wait=False)
        except Locked:
            self._file.close()
            raise Busy(f"{folder}: another process is training this run; wait for it, or stop it first") from None
        try:
            self._read()
        except BaseException:
            self._file.close()
            raise
        files.flush_folder(folder)

    def reserve(self, upto: int, environment: dict[str, Any] | None = None) -> None:
        """Steps below `upto` may be released once this returns."""
        head = {} if environment is None else {"format": FORMAT, "environment": environment}
        self._append({**head, "lineage": self.lineage, "upto": max(upto, self.upto)})

    def close_at(self, step: int) -> None:
        """The run stopped in good order: nothing at or past `step` was released."""
        self._append({"lineage": self.lineage, "upto": step, "closed": True})

    def branch(self) -> None:
        """What follows is no replay of what was."""
        self.lineage += 1

    def note(self, step: int, parameters: str) -> bool:
        """Enter the parameters after a step; False when a replay came to others than were entered before."""
        known = self._digests.get((self.lineage, step))
        if known is None:
            self._append({"lineage": self.lineage, "step": step, "parameters": parameters}, flush=False)
        return known in (None, parameters)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def __enter__(self) -> Ahead:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _append(self, entry: dict[str, Any], *, flush: bool = True) -> None:
        end = self._file.seek(0, os.SEEK_END)
        entry = {**entry, CHAIN: link(self._chain, entry)}
        line = json.dumps(entry).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            if flush:
                os.fsync(self._file.fileno())
        except OSError:
            self._file.truncate(end)  # or half a line would stand before the next
            raise
        self._take(entry)

    def _read(self) -> None:
        whole, _, rest = self._file.read().rpartition(b"\n")
        if rest:  # cut short by a crash: it was never acted on
            self._file.truncate(len(whole) + 1 if whole else 0)
        for number, line in enumerate(whole.split(b"\n") if whole else [], start=1):
            try:
                self._take(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise ValueError(
                    f"{self.path}:{number}: cannot be read ({type(error).__name__}); what it said may have been released, "
                    "so the run cannot go on"
                ) from None

    def _take(self, entry: dict[str, Any]) -> None:
        if "format" in entry:
            if entry["format"] != FORMAT:
                raise ValueError("another format")
            self.environment = dict(entry["environment"])
        self._chain = str(entry.get(CHAIN, ""))
        self.lineage = _whole(entry["lineage"])
        if "upto" in entry:
            self.upto, self.closed = _whole(entry["upto"]), bool(entry.get("closed", False))
        else:
            self._digests[self.lineage, _whole(entry["step"])] = str(entry["parameters"])


def link(before: str, entry: Mapping[str, Any]) -> str:
    """What ends a line: a digest of what it says and of the end of the line before it."""
    said = json.dumps({name: value for name, value in entry.items() if name != CHAIN}, sort_keys=True)
    return hashlib.sha256(f"{before} {said}".encode()).hexdigest()[:32]


@dataclass(frozen=True)
class Entered:
    """What a ledger file says, for whoever only reads it."""

    lineage: int
    environment: Mapping[str, Any]
    digests: Mapping[int, str]  # of the parameters after a step, in the last lineage
    chain: str  # the last
    broken: int | None  # the first line whose chain does not hold, counted from 1


def entered(folder: Path) -> Entered:
    """Read a ledger file; a last line cut short is left out."""
    whole = (folder / NAME).read_bytes().rpartition(b"\n")[0]
    lineage, environment, chain, broken = 0, dict[str, Any](), "", None
    digests: dict[int, str] = {}
    for number, line in enumerate(whole.split(b"\n"), start=1):
        try:
            entry = json.loads(line)
            if broken is None and entry.get(CHAIN) != link(chain, entry):
                broken = number
            chain, environment = str(entry.get(CHAIN, "")), entry.get("environment", environment)
            if entry["lineage"] != lineage:
                lineage, digests = _whole(entry["lineage"]), {}
            if "parameters" in entry:
                digests[_whole(entry["step"])] = str(entry["parameters"])
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{folder / NAME}:{number}: cannot be read ({type(error).__name__})") from None
    return Entered(lineage, environment, digests, chain, broken)


def _whole(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("not a count")
    return value
