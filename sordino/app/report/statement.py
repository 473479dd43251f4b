"""What only the people behind a run can state; it is asked for, never filled in.

Ponomareva et al. 2023, *How to DP-fy ML*, §5.3.3: what one record stands for, how hyper-parameters were chosen, what is
given to whom, how others can check. Kept in `statement.json` beside the run.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from sordino.app import atomic_files

STATEMENT = "statement.json"
NOT_STATED = "not stated"


@dataclass(frozen=True)
class Statement:
    """Answers, each in a sentence; None is told as "not stated".

    Args:
        unit: whom one record stands for.
        tuning: what was tried before.
        release: what is published.
        verify: how others can check it.

    Examples:
        >>> Statement(unit="one record is one patient").unit
        'one record is one patient'

    """

    unit: str | None = None
    """What one record stands for: a picture, a visit, everything about a person."""
    tuning: str | None = None
    """How hyper-parameters were chosen, and whether private data was looked at for it."""
    release: str | None = None
    """What is given out, and to whom."""
    verify: str | None = None
    """How others can check: open code, an audit."""

    def with_more(self, newer: Statement) -> Statement:
        """Returns this statement, overridden by what the newer one says."""
        return replace(self, **{name: text for name, text in asdict(newer).items() if text is not None})


def load_statement(folder: Path) -> Statement:
    """Returns the statement that the people behind a run made for an earlier report, or an empty statement."""
    path = folder / STATEMENT
    if not path.exists():
        return Statement()
    try:
        # The file may have been edited by hand, so its form is checked.
        stated = json.loads(path.read_text("utf-8"))
        known = {field.name for field in fields(Statement)}
        if not isinstance(stated, dict) or not set(stated) <= known:
            raise ValueError(f"need an object with {', '.join(sorted(known))}")
        if not all(text is None or isinstance(text, str) for text in stated.values()):
            raise ValueError("need text")
    except ValueError as error:
        raise ValueError(f"{path}: not a statement ({error})") from error
    return Statement(**stated)


def save_statement(folder: Path, statement: Statement) -> None:
    """Saves the statement beside the run, for the next report."""
    atomic_files.write_file(folder / STATEMENT, json.dumps(asdict(statement), indent=1, ensure_ascii=False) + "\n")
