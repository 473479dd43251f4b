"""The error for a file that cannot be read as data: file, line, what is wrong, what to do, all faults at once.

Privacy: it names a line and a column and never what is written there: errors end in logs.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_MOST_LINES = 5
"""Lines that are named of one fault; the others are counted."""


@dataclass(frozen=True)
class Fault:
    """Something wrong with a file: what, what to do, and the line."""

    what: str
    cure: str
    line: int | None = None


class BadFile(ValueError):
    """Raised for a file of the user's that cannot be used; nothing was trained."""

    def __init__(self, path: Path, what: str, cure: str, line: int | None = None) -> None:
        name = str(path) if not path.is_absolute() else path.name
        where = name if line is None else f"{name}, line {line}"
        super().__init__(f"{where}: {what}; {cure}")


class FaultyFile(BadFile):
    """Raised for a file with several faults; the message names all of them."""

    has_several_lines = True  # the command line prints them as they are

    def __init__(self, path: Path, faults: Sequence[Fault]) -> None:
        name = str(path) if not path.is_absolute() else path.name
        lines_of: dict[tuple[str, str], list[int]] = {}
        for fault in faults:
            lines_of.setdefault((fault.what, fault.cure), []).extend([] if fault.line is None else [fault.line])
        listed = [f"  {what}{_name_lines(lines)}; {cure}" for (what, cure), lines in lines_of.items()]
        ValueError.__init__(self, "\n".join([f"{name}: {len(faults)} faults; nothing was trained", *listed]))


def raise_faults(path: Path, faults: Sequence[Fault]) -> None:
    """Raises the error for a bad file of the user's with all its faults; does nothing if there are none."""
    if len(faults) == 1:
        raise BadFile(path, faults[0].what, faults[0].cure, faults[0].line)
    if faults:
        raise FaultyFile(path, faults)


def write_flag(flag: str, value: str) -> str:
    """Returns a flag and its value as a shell takes them, for the cure of a message about a bad file.

    >>> write_flag("--drop", "age"), write_flag("--bounds", "annual income=low:high")
    ('--drop age', "--bounds 'annual income=low:high'")
    """
    return f"{flag} {shlex.quote(value)}"


def _name_lines(lines: Sequence[int]) -> str:
    """Returns the first faulty lines of a bad file in words and how many others there are.

    >>> _name_lines([3]), _name_lines([1, 2, 3, 4, 5, 6, 7])
    (' in line 3', ' in lines 1, 2, 3, 4, 5 and 2 others')
    """
    if not lines:
        return ""
    named = ", ".join(map(str, lines[:_MOST_LINES]))
    others = len(lines) - _MOST_LINES
    return f" in line{'s' if len(lines) > 1 else ''} {named}" + (f" and {others} others" if others > 0 else "")


def read_content(path: Path) -> bytes:
    """Returns the bytes of a user's file; raises BadFile if it is missing or empty."""
    try:
        found = path.read_bytes()
    except OSError as error:
        raise BadFile(path, f"cannot be read ({error.strerror})", "give the path of a file that is there") from error
    if not found.strip():
        raise BadFile(path, "is empty", "need a line of names and a line for each record")
    return found


def read_text(path: Path) -> str:
    """Returns the UTF-8 text of a user's file, with or without a byte-order mark; raises BadFile for any other."""
    found = read_content(path)
    # Two encodings are usual besides: that of Windows, and the one that begins with a byte-order mark of two bytes.
    written_in = "UTF-16" if found.startswith((b"\xff\xfe", b"\xfe\xff")) else "WINDOWS-1252"
    cure = (
        "save it as UTF-8 (in a spreadsheet: CSV UTF-8; on the command line: "
        f"iconv -f {written_in} -t UTF-8 {shlex.quote(path.name)} > utf8{path.suffix})"
    )
    try:
        decoded = found.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise BadFile(path, "is not UTF-8 text", cure, found.count(b"\n", 0, error.start) + 1) from error
    if "\0" in decoded:
        raise BadFile(path, "holds bytes that no text has", cure, decoded.count("\n", 0, decoded.index("\0")) + 1)
    return decoded


def check_names(path: Path, given: list[str]) -> tuple[str, ...]:
    """Returns the names of the columns of a user's file; an empty or repeated name makes it a bad file."""
    for place, name in enumerate(given, start=1):
        if not name:
            raise BadFile(path, f"column {place} has no name", "give every column a name of its own", 1)
    twice = next((name for place, name in enumerate(given) if name in given[:place]), None)
    if twice is not None:
        raise BadFile(path, f"two columns are called {twice!r}", "give every column a name of its own", 1)
    return tuple(given)
