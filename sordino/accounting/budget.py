"""A privacy budget for one dataset, shared by all runs on it: an append-only file of events, with locking.

One JSON object per line: first the limit, then one line for every run that was allowed. A run is entered *before* it
touches the data; what was entered is spent.

**Privacy:** the events of all runs are composed as one event and accounted together, which is tighter than adding ε
and, unlike it, right at one δ. Reading, checking and appending happen under an exclusive lock of the file, so two
processes cannot both take the last of it. A damaged line stops everything: what cannot be read may have been spent.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from sordino import validate
from sordino.accounting.accountant import Accountant
from sordino.accounting.accountants.pld import PLD
from sordino.events import Event, compose, from_json, to_json
from sordino.file_lock import lock_file
from sordino.former_names import former_method

_VERSION = 1


class BudgetExhausted(Exception):
    """The run would exceed the budget; nothing was entered.

    Examples:
        >>> import os, tempfile
        >>> from sordino.events import Gaussian
        >>> budget = Budget.create(os.path.join(tempfile.mkdtemp(), "budget.jsonl"), epsilon=1.0, delta=1e-5)
        >>> try:
        ...     budget.spend(Gaussian(2.0), "mean")
        ... except BudgetExhausted:
        ...     print(len(budget.entries()))
        0

    """

    exit_code = 3


@dataclass(frozen=True)
class BudgetEntry:
    """One run that was allowed."""

    name: str
    event: Event
    time: str


@dataclass(frozen=True)
class Budget:
    """The budget kept in a file. Make one with `create`, open it again with `Budget(path)`.

    Privacy:
        A run is entered before it touches the data, and what was entered is spent.

    Examples:
        >>> import tempfile, os
        >>> from sordino.events import Gaussian
        >>> budget = Budget.create(os.path.join(tempfile.mkdtemp(), "budget.jsonl"), epsilon=3.0, delta=1e-5)
        >>> round(budget.spend(Gaussian(2.0), "mean"), 2)
        1.99

    """

    path: str | Path
    accountant: Accountant = field(default_factory=PLD)

    @staticmethod
    def create(path: str | Path, epsilon: float, delta: float, accountant: Accountant | None = None) -> Budget:
        """Creates the file of a new privacy budget with a limit of (ε, δ); an existing file is never overwritten."""
        limit = {
            "sordino_budget": _VERSION,
            "epsilon": validate.positive("epsilon", epsilon),
            "delta": validate.fraction("delta", delta),
        }
        with open(path, "x", encoding="utf-8") as file:
            file.write(json.dumps(limit) + "\n")
        return Budget(path, accountant or PLD())

    @property
    def limit(self) -> tuple[float, float]:
        """(ε, δ) for everything ever released about the dataset."""
        with self._open_locked(exclusive=False) as file:
            return _read_limit(_read_lines(file), self.path)

    def entries(self) -> tuple[BudgetEntry, ...]:
        """Returns the runs so far."""
        with self._open_locked(exclusive=False) as file:
            return _read_entries(_read_lines(file), self.path)

    def spent_epsilon(self) -> float:
        """Returns ε of all runs entered in the budget's file together, at the budget's δ."""
        with self._open_locked(exclusive=False) as file:
            lines = _read_lines(file)
        return self._compose_epsilon(_read_entries(lines, self.path), (), _read_limit(lines, self.path)[1])

    spent = former_method("spent", "spent_epsilon")

    def remaining_epsilon(self) -> float:
        """Returns the limit less what is spent. One more run may cost another amount than that: ask `allows`."""
        return max(0.0, self.limit[0] - self.spent_epsilon())

    left = former_method("left", "remaining_epsilon")

    def allows(self, event: Event) -> bool:
        """Returns whether one more run would stay within the limit of the budget."""
        with self._open_locked(exclusive=False) as file:
            lines = _read_lines(file)
        epsilon, delta = _read_limit(lines, self.path)
        return self._compose_epsilon(_read_entries(lines, self.path), (event,), delta) <= epsilon

    def spend(self, event: Event, name: str = "") -> float:
        """Enters a run in the budget's file before the run starts; returns the total ε with it, or raises
        `BudgetExhausted` and enters nothing.
        """
        # Read, decide and write under one exclusive lock: two processes that both saw the old total could exceed the
        # limit together.
        with self._open_locked(exclusive=True) as file:
            lines = _read_lines(file)
            epsilon, delta = _read_limit(lines, self.path)
            total = self._compose_epsilon(_read_entries(lines, self.path), (event,), delta)
            # Not `total > epsilon`: a total that is not a number must be refused too.
            if not total <= epsilon:
                raise BudgetExhausted(
                    f"{self.path}: the run would bring epsilon to {total:.4g} at delta={delta:g};"
                    f" the limit is {epsilon:g}"
                )
            # The entry is on the disk before the run may start. A run that crashes afterwards has spent its budget.
            entry = {"name": name, "time": datetime.now(UTC).isoformat(timespec="seconds"), "event": to_json(event)}
            file.seek(0, os.SEEK_END)
            file.write(json.dumps(entry) + "\n")
            file.flush()
            os.fsync(file.fileno())
        return total

    def _compose_epsilon(self, entries: tuple[BudgetEntry, ...], more: tuple[Event, ...], delta: float) -> float:
        """Returns ε of all entries, and of more events, composed as one event."""
        events = [entry.event for entry in entries] + list(more)
        return self.accountant.epsilon(compose(events), delta) if events else 0.0

    @contextmanager
    def _open_locked(self, *, exclusive: bool) -> Iterator[IO[str]]:
        """Opens the budget's file under a lock, exclusive for writing, that is released with the file."""
        try:
            file = open(self.path, "r+" if exclusive else "r", encoding="utf-8")  # noqa: SIM115
        except FileNotFoundError:
            raise ValueError(f"{self.path}: no such budget; create it first") from None
        with file:
            lock_file(file, exclusive=exclusive)
            yield file


def _read_lines(file: IO[str]) -> list[str]:
    """Returns the lines of a budget's file; raises if the last one is torn."""
    text = file.read()
    if text and not text.endswith("\n"):
        raise ValueError(f"{file.name}: the last line is incomplete; repair it before anything else is released")
    return text.splitlines()


def _parse_line(line: str, number: int, path: str | Path) -> dict[str, Any]:
    """Returns the object on one line of a budget's file; raises if the line is damaged, because what cannot be read may
    have been spent.
    """
    try:
        value = json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(
            f"{path}:{number}: not JSON ({error.msg}); repair it before anything else is released"
        ) from None
    if not isinstance(value, dict):
        raise ValueError(f"{path}:{number}: not an object")
    return value


def _read_limit(lines: list[str], path: str | Path) -> tuple[float, float]:
    """Returns the limit (ε, δ) of a budget from the first line of its file; raises if the file is no budget of this
    version.
    """
    head = _parse_line(lines[0], 1, path) if lines else {}
    if head.get("sordino_budget") != _VERSION:
        raise ValueError(f"{path}: not a budget of this version")
    return validate.positive("epsilon", head["epsilon"]), validate.fraction("delta", head["delta"])


def _read_entries(lines: list[str], path: str | Path) -> tuple[BudgetEntry, ...]:
    """Returns the runs that were entered in a budget's file, on all lines after the first."""
    result = []
    for number, line in enumerate(lines[1:], start=2):
        value = _parse_line(line, number, path)
        if "event" not in value:
            raise ValueError(f"{path}:{number}: no event")
        result.append(BudgetEntry(str(value.get("name", "")), from_json(value["event"]), str(value.get("time", ""))))
    return tuple(result)
