"""The write-ahead ledger: steps are entered on the disk before anything of them is released.

One JSON object per line, appended:

    {"format": 2, "run": "5e…", "lineage": 0, "upto": 0, "environment": {…}}    a run begins; nothing was released
    {"format": 2, "lineage": 0, "upto": 40, "environment": {…}}    steps below 40 may have been released
    {"lineage": 0, "step": 40, "parameters": "9f…"}                the parameters after step 40, by their SHA-256
    {"lineage": 0, "upto": 52, "closed": true}                     stopped in good order: nothing past 52 was released

Steps are reserved in blocks that end where the next checkpoint is due, so a block costs one write to the disk. Parameters
are entered after every step, without waiting for the disk. Every line ends with `chain`, a digest of itself and of the
line before.

A chain shows that no line was changed, but not that none is missing at the end. So after every line that reached the
disk, `checkpoints/ledger-head.json` gets the end of its chain. When a run goes on, every link of the chain is checked and
the head must be in it. A ledger that is empty, was cut, was changed or is that of another run is refused: it may have
said that more was released. `sordino audit replay` runs steps again and compares them with what was entered.

Privacy: after a crash at any moment, what may have been released is what the last line with `released_below` says; a
line cut short was never acted on. A replay from the checkpoint repeats a release, which costs nothing: key, parameters
and data are the same, so its output is the same bits. Where parameters were entered they are compared; a lineage ends
where a replay is not possible.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import nn

from sordino.app import atomic_files
from sordino.app.runs.run_device import device_of
from sordino.file_lock import Locked, lock_file


def parameter_digest(model: nn.Module) -> str:
    """Returns the digest of a model's parameters and buffers, which the write-ahead ledger keeps for each step.

    It is a function of their bytes alone, wherever the model is.
    """
    state = {
        name: tensor.detach().contiguous().view(-1).view(torch.uint8) for name, tensor in model.state_dict().items()
    }
    # From a device everything comes in one copy, so that the host waits once.
    if any(tensor.device.type != "cpu" for tensor in state.values()):
        together = torch.cat([tensor.to(device_of(model)) for tensor in state.values()]).cpu()
        state = dict(zip(state, together.split([len(tensor) for tensor in state.values()]), strict=True))
    # Names and bytes of all tensors: two models with equal digests are equal bit by bit.
    hasher = hashlib.sha256()
    for name, tensor in state.items():
        hasher.update(name.encode())
        hasher.update(tensor.numpy().data)
    return hasher.hexdigest()[:32]


FORMAT = 2
_WITHOUT_HEAD = 1
"""The format of version 0.2, which kept no head: what its last lines said may be missing."""
NAME = "ledger.jsonl"
HEAD = "checkpoints/ledger-head.json"
CHAIN = "chain"


class RunIsBusy(ValueError):
    """Raised when another process is writing to the run."""


class DamagedLedger(ValueError):
    """Raised for a ledger that may have said more than it says now."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(
            f"{path}: {found}.\n"
            "It may have said that more was released than it says now, so the run cannot go on.\n"
            f"Put {NAME} and {HEAD} back from a backup, or start a new run in another folder. What this run released then "
            "counts as its whole plan, whose ε is in privacy.json."
        )


@dataclass
class LedgerEntries:
    """What the complete lines of a ledger file say."""

    format: int = FORMAT
    run: str = ""
    lineage: int = 0
    upto: int = 0
    environment: dict[str, Any] = field(default_factory=dict)
    digests_by_lineage: dict[tuple[int, int], str] = field(default_factory=dict)
    """Of the parameters, by lineage and step."""
    chains: list[str] = field(default_factory=list)
    """The ends of all lines."""
    first_broken_line: int | None = None
    """The first line whose chain does not hold, counted from 1."""

    @property
    def chain(self) -> str:
        """The end of the last line; empty before the first."""
        return self.chains[-1] if self.chains else ""

    @property
    def digests(self) -> dict[int, str]:
        """The digests of the parameters after a step, in the last lineage."""
        return {step: found for (lineage, step), found in self.digests_by_lineage.items() if lineage == self.lineage}

    def add_entry(self, entry: Mapping[str, Any]) -> None:
        """Adds what one more line of the write-ahead ledger says; raises if it cannot be understood."""
        # The first line of a process says the format and what its bits depend on.
        if "format" in entry:
            if entry["format"] not in (FORMAT, _WITHOUT_HEAD):
                raise ValueError("another format")
            self.format = entry["format"]
            self.environment = dict(entry["environment"])
        self.run = str(entry.get("run", self.run))
        # A chain that breaks once cannot be trusted afterwards, so only the first break is noted.
        if self.first_broken_line is None and entry.get(CHAIN) != chain_digest(self.chain, entry):
            self.first_broken_line = len(self.chains) + 1
        self.chains.append(str(entry.get(CHAIN, "")))
        self.lineage = _check_count(entry["lineage"])
        if "upto" in entry:
            self.upto = _check_count(entry["upto"])
        else:
            self.digests_by_lineage[self.lineage, _check_count(entry["step"])] = str(entry["parameters"])


class WriteAheadLedger:
    """The ledger file of one run, held by one process at a time."""

    def __init__(self, folder: Path, *, new: bool = False, environment: Mapping[str, Any] | None = None) -> None:
        """Opens the ledger of a run, or makes that of a new one, and holds it until it is closed.

        `environment` is what the bits of a new run depend on.

        Raises:
            RunIsBusy: if another process holds it.
            DamagedLedger: if it may have said more than it says now.

        """
        # A new ledger has its first line from the beginning, so an empty file is always a damaged one.
        self.path, self._head = folder / NAME, folder / HEAD
        self._new_branches, self._flushed_chain = 0, ""
        if new and not self.path.exists():
            self._create(environment or {})
        try:
            self._file = open(self.path, "r+b", buffering=0)  # noqa: SIM115 (held for the life of the run)
        except FileNotFoundError:
            raise DamagedLedger(self.path, "is missing") from None
        try:
            # Two processes that trained the same run would release different values under one entry.
            lock_file(self._file, wait=False)
        except Locked:
            self._file.close()
            raise RunIsBusy(f"{folder}: another process is training this run; wait for it, or stop it first") from None
        try:
            # The chain and the head are checked before anything is written.
            self._entries, whole = self._read_entries()
            if self._entries.run and not self._head.exists() and new:
                self._write_head(self._entries.chain)  # a crash came between the two files
            self._check_head()
            self._file.truncate(whole)  # a line cut short by a crash was never acted on
            if new and self.released_below:
                raise ValueError(f"{self.path}: a run was begun here; use `sordino resume {folder}`")
            atomic_files.flush_folder(folder)
        except BaseException:
            self._file.close()
            raise

    @property
    def lineage(self) -> int:
        """How often the run went on otherwise than by a replay."""
        return self._new_branches + self._entries.lineage

    @property
    def released_below(self) -> int:
        """Steps below this may have been released."""
        return self._entries.upto

    @property
    def environment(self) -> dict[str, Any]:
        """What the bits of the run depended on."""
        return self._entries.environment

    @property
    def is_complete(self) -> bool:
        """Whether no line can be missing at the end. Version 0.2 kept no head, by which this is known."""
        return self._head.exists()

    @property
    def position(self) -> dict[str, str]:
        """The run and the last line that is on the disk: a checkpoint takes it along."""
        return {"run": self._entries.run, CHAIN: self._flushed_chain}

    def check_position(self, position: Mapping[str, str] | None) -> None:
        """Raises DamagedLedger where a checkpoint was saved beside another write-ahead ledger, or beside lines that are
        gone.
        """
        # Checkpoints since 0.3 say beside which ledger they were saved, and up to which line.
        if position is None:  # of version 0.2
            return
        if position["run"] != self._entries.run:
            raise DamagedLedger(self.path, "is that of another run than the checkpoints are")
        if position[CHAIN] and position[CHAIN] not in self._entries.chains:
            raise DamagedLedger(self.path, "lacks lines that were in it when the last checkpoint was saved")

    def reserve(self, upto: int, environment: dict[str, Any] | None = None) -> None:
        """Enters that steps below `released_below` may be released, once this returns."""
        head = {} if environment is None else {"format": self._entries.format, "environment": environment}
        self._append_entry({**head, "lineage": self.lineage, "upto": max(upto, self.released_below)})

    def close_at(self, step: int) -> None:
        """Enters that the run stopped in good order: nothing at or past `step` was released."""
        self._append_entry({"lineage": self.lineage, "upto": step, "closed": True})

    def branch(self) -> None:
        """Begins a new lineage, because what follows does not replay what was released before."""
        self._new_branches += 1

    def enter_parameters(self, step: int, parameters: str) -> bool:
        """Enters the parameters after a step in the write-ahead ledger; returns False if a replay came to others than
        were entered before.
        """
        # Entered before means that this step is a replay, which must come to the same parameters.
        known = self._entries.digests_by_lineage.get((self.lineage, step))
        if known is None:
            self._append_entry({"lineage": self.lineage, "step": step, "parameters": parameters}, flush=False)
        return known in (None, parameters)

    def close(self) -> None:
        """Closes the file, which unlocks it."""
        self._file.close()

    def __enter__(self) -> WriteAheadLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _create(self, environment: Mapping[str, Any]) -> None:
        """Writes the first line of a new write-ahead ledger in one move, so that an empty ledger is never that of a new
        run.
        """
        entry: dict[str, Any] = {"format": FORMAT, "run": secrets.token_hex(16), "lineage": 0, "upto": 0}
        entry["environment"] = dict(environment)
        entry[CHAIN] = chain_digest("", entry)
        atomic_files.write_file(self.path, json.dumps(entry) + "\n")
        self._write_head(entry[CHAIN])

    def _append_entry(self, entry: dict[str, Any], *, flush: bool = True) -> None:
        """Writes a line of the write-ahead ledger; with `flush`, the line and the head are on the disk when this
        returns.
        """
        # The line is made whole in memory and written at once, behind all others.
        end = self._file.seek(0, os.SEEK_END)
        entry = {**entry, CHAIN: chain_digest(self._entries.chain, entry)}
        line = json.dumps(entry).encode() + b"\n"
        try:
            if self._file.write(line) != len(line):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(self.path))
            if flush:
                os.fsync(self._file.fileno())
                self._write_head(entry[CHAIN])
        except OSError:
            self._file.truncate(end)  # or half a line would stand before the next
            raise
        self._new_branches = 0  # the line says the lineage
        self._entries.add_entry(entry)

    def _write_head(self, chain: str) -> None:
        """Writes down, outside the ledger, the end of its last line that is on the disk."""
        atomic_files.write_file(self._head, json.dumps({CHAIN: chain}) + "\n")
        self._flushed_chain = chain

    def _read_entries(self) -> tuple[LedgerEntries, int]:
        """Returns what the write-ahead ledger says, and the length of its complete lines.

        Raises:
            DamagedLedger: if a line cannot be read, a link of the chain does not hold, or there is no line at all.

        """
        # A last line without its end was cut short by a crash and never acted on.
        raw = self._file.read()
        complete_lines = raw[: raw.rfind(b"\n") + 1]
        if not complete_lines:
            raise DamagedLedger(self.path, "has no whole line")
        entered = LedgerEntries()
        for number, line in enumerate(complete_lines[:-1].split(b"\n"), start=1):
            try:
                entered.add_entry(json.loads(line))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                raise DamagedLedger(self.path, f"line {number} cannot be read ({type(error).__name__})") from None
        # Every link of the chain must hold, and the first line must be that of a run.
        chained = entered.format == FORMAT or any(entered.chains)  # the first ledgers had no chain at all
        if chained and entered.first_broken_line is not None:
            raise DamagedLedger(self.path, f"line {entered.first_broken_line} is not the one that was written there")
        if entered.format == FORMAT and not entered.run:
            raise DamagedLedger(self.path, "does not begin with the line that every run begins with")
        return entered, len(complete_lines)

    def _check_head(self) -> None:
        """Raises DamagedLedger if the line that the head names is not in the write-ahead ledger."""
        try:
            head = json.loads(self._head.read_bytes())[CHAIN]
        except FileNotFoundError:
            # Ledgers of an earlier format had no head, so only one of today's format misses it.
            if self._entries.format == FORMAT:
                raise DamagedLedger(self._head, "is missing, so nobody knows whether the ledger is whole") from None
            return
        except (ValueError, TypeError, KeyError) as error:
            raise DamagedLedger(self._head, f"cannot be read ({type(error).__name__})") from None
        # The head names the last line that reached the disk; a ledger without it was cut, or is that of another run.
        if head not in self._entries.chains:
            raise DamagedLedger(self.path, "lacks lines that were in it")
        self._flushed_chain = head


def chain_digest(previous_chain: str, entry: Mapping[str, Any]) -> str:
    """Returns the chain value of a line: a digest of its content and of the chain value before it."""
    said = json.dumps({name: value for name, value in entry.items() if name != CHAIN}, sort_keys=True)
    return hashlib.sha256(f"{previous_chain} {said}".encode()).hexdigest()[:32]


def was_begun(folder: Path) -> bool:
    """Returns whether anything of a run may have been released, as far as its write-ahead ledger shows.

    No ledger, or a ledger with nothing but its first line, means that nothing was released. Any other ledger, and a
    damaged one, means that something may have been.
    """
    # A head without a ledger means that the ledger was removed.
    if not (folder / NAME).exists():
        return (folder / HEAD).exists()
    try:
        found = read_entries(folder)
    except ValueError:
        return True
    return len(found.chains) != 1 or found.format != FORMAT or found.first_broken_line is not None or found.upto > 0


def read_entries(folder: Path) -> LedgerEntries:
    """Reads a write-ahead ledger file without holding it; a last line cut short is left out."""
    # What follows the last line break was being written when the process died, and was never acted on.
    complete_lines = (folder / NAME).read_bytes().rpartition(b"\n")[0]
    entries = LedgerEntries()
    for number, line in enumerate(complete_lines.split(b"\n"), start=1):
        try:
            entries.add_entry(json.loads(line))
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise ValueError(f"{folder / NAME}:{number}: cannot be read ({type(error).__name__})") from None
    return entries


def _check_count(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 0:
        raise ValueError("not a count")
    return value


class FollowerLedger:
    """The write-ahead ledger as the other ranks see it: what the first rank wrote, with nothing on a disk."""

    def __init__(
        self, upto: int = 0, lineage: int = 0, environment: dict[str, Any] | None = None, is_complete: bool = True
    ) -> None:
        self.released_below, self.lineage, self.environment = upto, lineage, dict(environment or {})
        self.is_complete, self.position = is_complete, dict[str, str]()

    def reserve(self, upto: int, environment: dict[str, Any] | None = None) -> None:
        """Records that steps below `released_below` may be released once the first rank has entered them."""
        self.released_below = max(upto, self.released_below)

    def close_at(self, step: int) -> None:
        """Records that the run stopped in good order at a step."""
        self.released_below = step

    def branch(self) -> None:
        """Begins a new lineage, because what follows does not replay what was released before."""
        self.lineage += 1

    def enter_parameters(self, step: int, parameters: str) -> bool:
        """Returns True: the first rank compares the parameters and broadcasts the result."""
        return True

    def __enter__(self) -> FollowerLedger:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Does nothing, because no file is held."""
