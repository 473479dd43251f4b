"""Proposes a schema for a table by looking at its records, to be edited before it is used.

    ids        every cell another text or whole number: left out
    dates      bounds in whole years around the days that there are
    numbers    bounds in round numbers around those that there are; missing if some cells are
    names      categories if there are few, hashed if there are many

Privacy: everything proposed was read off the records without noise, and no ε covers that. The file says so with
`read_off_records = true`, and a run that uses it names it in its claim. Somebody who knows what the columns mean replaces
the proposals by that knowledge and deletes the line.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sordino.app import toml_writer
from sordino.app.data.own.bad_file import BadFile
from sordino.app.data.own.columns import MISSING_MARKS, MOST_CATEGORIES, describe_unread_form, parse_number
from sordino.app.data.own.declared_columns import parse_date
from sordino.app.data.own.rows import TableRows

_FEW_CATEGORIES = 30
"""Names up to which a column is proposed as categories."""
_FEW_NUMBERS = 10
"""Different whole numbers up to which a target is taken for classes."""
_MOSTLY = 0.9
"""The share of readable cells from which on a column is taken for numbers or dates."""
_PLACES = 64
_HEAD = """# A schema proposed by looking at the records of {name}. Edit it before you use it:
# replace every bound, category and class by what is known without looking, then delete the line read_off_records.
# While it is there, the claim of a run says that it does not cover what was read off the records.
"""


@dataclass
class ProposedSchema:
    """A schema as it was proposed, and a line about every column."""

    table: dict[str, Any] = field(default_factory=dict)
    """As a schema file holds it."""
    notes: list[tuple[str, str]] = field(default_factory=list)
    """The name of every column, and what was seen in it."""

    def render(self, name: str) -> str:
        """Returns the text of the schema file."""
        return _HEAD.format(name=name) + "\n" + toml_writer.dumps(self.table)


def propose_schema(rows: TableRows, target: str | None) -> ProposedSchema:
    """Returns the schema that an inspection of a user's own table proposes; the target is the column that is to be
    learnt.
    """
    if target is not None:
        rows.column(target, "--target")
    # Everything proposed here was read off the records, which the schema says of itself.
    proposed = ProposedSchema()
    scalars: dict[str, Any] = {"read_off_records": True} | ({} if target is None else {"target": target})
    lists: dict[str, list[str]] = {"drop": [], "missing": []}
    kinds: dict[str, dict[str, Any]] = {"bounds": {}, "dates": {}, "categories": {}, "hashed": {}}
    for name in rows.columns:
        cells = rows.column(name)
        if name == target:
            # The target has classes or bounds of its own; all other columns get one kind each.
            more, note = _propose_target(rows.path, name, cells)
            scalars |= {key: value for key, value in more.items() if key != "bounds"}
            kinds["bounds"] |= more.get("bounds", {})
        else:
            kind, value, is_missing, note = _propose_column(cells)
            if kind == "drop":
                lists["drop"].append(name)
            else:
                kinds[kind][name] = value
            lists["missing"] += [name] if is_missing else []
        proposed.notes.append((name, note))
    proposed.table = (
        scalars
        | {key: value for key, value in lists.items() if value}
        | {key: value for key, value in kinds.items() if value}
    )
    return proposed


def _propose_target(path: Path, name: str, cells: Sequence[str]) -> tuple[dict[str, Any], str]:
    """Returns what an inspection of a user's table proposes for the target: its classes or bounds, the label to ignore,
    and a note.
    """
    # Records without a target cannot be learnt from, so leaving them out is proposed.
    empty = sum(not cell for cell in cells)
    filled = [cell for cell in cells if cell]
    if not filled:
        raise BadFile(path, f"the target {name!r} is empty in every record", "choose another")
    more: dict[str, Any] = {"ignore_label": ""} if empty else {}
    left_out = f"; {empty:,} without one are left out" if empty else ""
    classes = sorted(set(filled))
    numbers = [number for cell in filled if (number := parse_number(cell)) is not None]
    # Many different numbers are a number to predict; everything else is a class.
    if len(numbers) == len(filled) and len(classes) > _FEW_NUMBERS:
        low, high = round_outwards(min(numbers), max(numbers))
        return more | {"bounds": {name: [low, high]}}, f"a number to predict: train with --loss squared{left_out}"
    if len(classes) > MOST_CATEGORIES:
        raise BadFile(path, f"the target {name!r} has more than {MOST_CATEGORIES} different values", "choose another")
    # A rare class is worth a remark, because private training may never learn it.
    rarest = min(filled.count(one) for one in classes) / len(filled)
    return more | {"classes": classes}, f"{len(classes)} classes, the rarest of {rarest:.1%} of the records{left_out}"


def _propose_column(cells: Sequence[str]) -> tuple[str, Any, bool, str]:
    """Returns what an inspection of a user's table proposes for a column: its kind, what is declared of it, whether
    cells are missing, and a note.
    """
    # What is missing says nothing about the kind of a column.
    filled = [cell for cell in cells if cell.lower() not in MISSING_MARKS]
    missing, different = len(cells) - len(filled), len(set(filled))
    share = f"; {missing / len(cells):.1%} missing" if missing else ""
    if not filled:
        return "drop", None, False, "empty in every record: left out"
    numbers = [number for cell in filled if (number := parse_number(cell)) is not None]
    days = [day for cell in filled if (day := parse_date(cell)) is not None]
    # Dates before names, numbers before ids: a column of measurements may be all different too.
    if len(days) == len(filled):
        first, last = f"{min(days).year}-01-01", f"{max(days).year}-12-31"
        return "dates", [first, last], missing > 0, f"dates from {first} to {last}{share}"
    # Ids would let a model learn single people, and mean nothing for others.
    is_id = different == len(cells) and all(cell.isdigit() or parse_number(cell) is None for cell in filled)
    if is_id:
        return "drop", None, False, "another one in every record, as ids are: left out"
    if len(numbers) == len(filled):
        low, high = round_outwards(min(numbers), max(numbers))
        return "bounds", [low, high], missing > 0, f"numbers from {low:g} to {high:g}{share}"
    if len(numbers) > _MOSTLY * len(filled):
        note = f"numbers in {len(numbers) / len(filled):.1%} of the cells; mend the others, or declare a kind"
        low, high = round_outwards(min(numbers), max(numbers))
        return "bounds", [low, high], missing > 0, note
    # Few names are listed with a place for others; many are hashed.
    if different <= _FEW_CATEGORIES:
        return (
            "categories",
            [*sorted(set(filled)), "*"],
            False,
            f"{different} names; others and empty cells are *{share}",
        )
    if (unread := describe_unread_form(cells)) is not None:
        return "hashed", _PLACES, False, f"{unread[0]}: {unread[1]}, or they are hashed as names{share}"
    return "hashed", _PLACES, False, f"{different:,} names, hashed into {_PLACES} places{share}"


def round_outwards(low: float, high: float) -> tuple[float, float]:
    """Returns the bounds that an inspection proposes: round numbers below and above two others, so that they tell less
    of the records at the ends.

    >>> round_outwards(3, 97), round_outwards(-0.02, 13400)
    ((0.0, 100.0), (-2000.0, 14000.0))
    """
    # One or two digits: an exact minimum would be somebody's number.
    spread = max(high - low, abs(high), abs(low), 1e-9)
    step = (
        10.0 ** math.floor(math.log10(spread)) * (1 if spread / 10.0 ** math.floor(math.log10(spread)) < 5 else 2) / 5
    )
    rounded = math.floor(low / step) * step, math.ceil(high / step) * step
    return (rounded[0], rounded[1]) if rounded[0] < rounded[1] else (rounded[0], rounded[0] + step)
