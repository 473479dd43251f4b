"""Turns the columns of a table into numbers: as declared, or else by looking at the records.

    bounds declared         cut to them and scaled to [−1, 1], and the square, so that a linear model can peak or dip in
                            between, as income does with age; of a long range from 0 or above the logarithm too,
                            because most amounts in [0, 100,000] lie at one end, where they look alike
    dates declared          days between the two, scaled to [−1, 1], and the places in the year and in the week
    categories declared     a column of 0 and 1 for each; another name is refused by its line, or is `*`
    hashed declared         a column of 0 and 1 for each of so many places, by a public hash of the cell
    missing declared        one column more, 1 where a number or date is missing; the number is then the middle of its range
    nothing declared        a number if every cell is one, else a name. Numbers stay as they are: their bounds are found
                            privately, later. Names become the categories that there are.

Privacy: a record's numbers are made of its own cells. What a look told (`EncodingScheme.read_off`) is not covered by a
claim, which has to say so.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sordino.app.data.own.bad_file import BadFile, Fault, write_flag
from sordino.app.data.own.declared_columns import OTHERS, Bounds, DeclaredColumns, parse_date
from sordino.app.data.own.rows import TableRows

MOST_CATEGORIES = 100
"""Of a column about which nothing was declared: more are no categories."""
MISSING_MARKS = frozenset(("", "na", "n/a", "nan", "null", "none", "?"))
"""What stands for a missing number or date, in upper or lower case, in columns declared to have such."""

LONG_RANGE = 1000.0
"""The length of declared bounds from which on a column of amounts becomes its logarithm too."""
_DECIMAL_COMMA = re.compile(r"[+-]?\d+(,\d+)?")
_SLASHED_DATE = re.compile(r"\d{1,2}/\d{1,2}/(\d{2}|\d{4})")
_DAYS_IN_YEAR = 365.25
_DATE_TITLES = ("in its range", "year, sine", "year, cosine", "week, sine", "week, cosine")


@dataclass(frozen=True)
class Column:
    """One column of the file: a number with bounds, a number without known bounds, a date, or names."""

    name: str
    bounds: Bounds | None = None
    categories: tuple[str, ...] | None = None
    refuses_others: bool = True
    """Another name than these is refused."""
    dates: tuple[str, str] | None = None
    """The first and the last day, as in 2020-01-31."""
    places: int | None = None
    """How many places names are hashed into."""
    may_be_missing: bool = False
    squared: bool = False
    """Whether the square of a number with bounds is one more number; in runs of earlier versions it is not."""
    logarithmic: bool = False
    """Whether its logarithm is one more number; in runs of earlier versions it is not."""

    @property
    def is_unbounded(self) -> bool:
        """Whether it is a number whose bounds are still to be found."""
        return self.bounds is None and self.categories is None and self.dates is None and self.places is None

    @property
    def width(self) -> int:
        """How many numbers the column becomes."""
        return len(self.titles)

    @property
    def titles(self) -> list[str]:
        """The titles of the numbers that this column of the user's own table becomes."""
        if self.categories is not None:
            return [f"{self.name}={one}" for one in self.categories]
        if self.places is not None:
            return [f"{self.name} hashed to {place}" for place in range(self.places)]
        # Numbers and dates that may be missing have one more number, which says whether they are.
        missing = [f"{self.name} is missing"] if self.may_be_missing else []
        if self.dates is not None:
            return [f"{self.name} {title}" for title in _DATE_TITLES] + missing
        return [
            self.name if self.bounds is None else f"{self.name} in [{self.bounds[0]:g}, {self.bounds[1]:g}]",
            *([f"{self.name}, squared"] if self.squared else []),
            *([f"{self.name}, logarithm"] if self.logarithmic else []),
            *missing,
        ]

    def table(self) -> dict[str, Any]:
        """Returns the fields of a column that are set, as JSON holds them."""
        fields_set = {name: value for name, value in asdict(self).items() if value is not None}
        # Left out where they are False, as in the files of earlier versions.
        return {name: value for name, value in fields_set.items() if name not in ("squared", "logarithmic") or value}


def column_from_table(table: Mapping[str, Any]) -> Column:
    """Creates a column from what `Column.table` returned."""
    tuples = {name: tuple(value) for name, value in table.items() if isinstance(value, list)}
    return Column(**{**table, **tuples})


@dataclass(frozen=True)
class EncodingScheme:
    """How every column becomes numbers; columns without bounds come first."""

    columns: tuple[Column, ...]
    read_off: tuple[str, ...] = ()
    """What the records told without noise, in words."""

    @property
    def unbounded(self) -> int:
        """How many numbers, which come first, have bounds that are still to be found."""
        return sum(one.is_unbounded for one in self.columns)

    @property
    def titles(self) -> list[str]:
        """The titles of all numbers of a record, in order."""
        return [title for column in self.columns for title in column.titles]

    def encode(self, rows: TableRows) -> NDArray[np.float32]:
        """Returns the columns of a user's own table as numbers, (N, numbers); faulty cells are entered in `rows.faults`
        and become 0.
        """
        # All columns are encoded before anything is raised, so that all faults are told at once.
        made = [encode_column(rows, column) for column in self.columns]
        return np.concatenate(made, axis=1).astype(np.float32)


def choose_scheme(rows: TableRows, declared: DeclaredColumns, leave_out: Sequence[str]) -> EncodingScheme:
    """Returns how the columns of a user's own table become numbers: as declared, and by looking at the rows where
    nothing was.
    """
    _refuse_unknown_names(rows, declared, leave_out)
    columns, inspected, names = [], [], []
    # A declared column is taken at its word. Looking at another one tells something, which is listed.
    for name in rows.columns:
        if name in leave_out:
            continue
        if declared.speaks_of(name):
            columns.append(declared_column(name, declared))
            continue
        inspected.append(name)
        column = _infer_column(rows, name)
        names += [name] if column.categories is not None else []
        columns.append(column)
    if not columns:
        raise BadFile(rows.path, "no column is left to learn from", "need one besides the target")
    # Columns without bounds come first, because a private release finds their bounds later.
    columns.sort(key=lambda one: (not one.is_unbounded, one.categories is not None, one.bounds is not None))
    read_off = (
        [f"which columns are numbers: {', '.join(inspected)}, read off the data; give bounds or categories"]
        if inspected
        else []
    )
    read_off += (
        [f"which categories there are in {', '.join(names)}, read off the data; give categories"] if names else []
    )
    return EncodingScheme(tuple(columns), tuple(read_off))


def declared_column(name: str, declared: DeclaredColumns) -> Column:
    """Returns how one of the columns of the user's own table becomes numbers, by what was declared about it."""
    # One declaration at most speaks of a column; `DeclaredColumns` saw to that.
    may_be_missing = name in declared.missing
    if name in declared.bounds:
        low, high = declared.bounds[name]
        is_long = low >= 0 and high - low >= LONG_RANGE  # by the declared bounds alone, which are public
        return Column(name, bounds=(low, high), may_be_missing=may_be_missing, squared=True, logarithmic=is_long)
    if name in declared.dates:
        return Column(name, dates=declared.dates[name], may_be_missing=may_be_missing)
    if name in declared.hashed:
        return Column(name, places=declared.hashed[name])
    categories = declared.categories[name]
    return Column(name, categories=categories, refuses_others=OTHERS not in categories)


def encode_column(rows: TableRows, column: Column) -> NDArray[np.float64]:
    """Returns one column of a user's own table as numbers, (N, width); faulty cells are entered in `rows.faults` and
    become 0.
    """
    if column.categories is not None:
        return np.eye(len(column.categories) + 1)[category_numbers(rows, column)][:, : len(column.categories)]
    if column.places is not None:
        return np.eye(column.places)[_hashed_places(rows.column(column.name), column.places)]
    return _encode_dates(rows, column) if column.dates is not None else _encode_numbers(rows, column)


def _encode_numbers(rows: TableRows, column: Column) -> NDArray[np.float64]:
    """Returns a column of numbers of the user's own table, scaled by its bounds if it has any, and which of them are
    missing if some may be.
    """
    cells = rows.column(column.name)
    # A missing number becomes the middle of its range, 0, and its own flag.
    values = np.array([math.nan if (value := parse_number(cell)) is None else value for cell in cells])
    absent = _find_absent(rows, column, cells, np.isnan(values), "no finite number")
    if column.bounds is None:
        return np.where(absent, 0.0, values)[:, None]
    # Cutting at declared bounds is what makes the scaled number bounded, whatever the cell says.
    low, high = column.bounds
    above = np.clip(values, low, high) - low
    scaled = 2 * above / (high - low) - 1
    parts = [scaled]
    if column.squared:
        parts.append(2 * scaled**2 - 1)  # in [−1, 1], and uncorrelated with `scaled` over the range
    if column.logarithmic:
        parts.append(2 * np.log1p(above) / math.log1p(high - low) - 1)
    numbers = [np.where(absent, 0.0, part) for part in parts]
    return np.stack([*numbers, absent] if column.may_be_missing else numbers, axis=1)


def _encode_dates(rows: TableRows, column: Column) -> NDArray[np.float64]:
    """Returns a column of dates of the user's own table as five numbers: place in its range, in the year and in the
    week.
    """
    assert column.dates is not None
    cells = rows.column(column.name)
    parsed = [parse_date(cell) for cell in cells]
    absent = _find_absent(rows, column, cells, np.array([one is None for one in parsed]), "no date, as in 2020-01-31")
    # Sine and cosine put the last day of a year beside the first.
    first, last = (date.fromisoformat(end).toordinal() for end in column.dates)
    days = np.array([first if one is None else one.toordinal() for one in parsed], dtype=np.float64)
    in_range = 2 * (np.clip(days, first, last) - first) / (last - first) - 1
    year = 2 * math.pi * np.array([0 if one is None else one.timetuple().tm_yday for one in parsed]) / _DAYS_IN_YEAR
    week = 2 * math.pi * np.array([0 if one is None else one.weekday() for one in parsed]) / 7
    numbers = np.stack([in_range, np.sin(year), np.cos(year), np.sin(week), np.cos(week)], axis=1)
    numbers[absent] = 0.0
    return np.concatenate([numbers, absent[:, None]], axis=1) if column.may_be_missing else numbers


def _find_absent(
    rows: TableRows, column: Column, cells: Sequence[str], unreadable: NDArray[np.bool_], what: str
) -> NDArray[np.bool_]:
    """Returns which cells of a column hold nothing that can be used; those that may not be missing are entered as
    faults.
    """
    for at in np.flatnonzero(unreadable).tolist():
        # An empty cell is no fault where values may be missing; one with something unreadable is a fault everywhere.
        is_empty = cells[at].lower() in MISSING_MARKS
        if is_empty and column.may_be_missing:
            continue
        # The cure names `--missing` for empty cells alone: it would not make a readable number out of a word.
        cure = "mend the cell or leave the record out"
        if is_empty and not column.is_unbounded:
            cure = f"mend the cell, leave the record out, or say {write_flag('--missing', column.name)}"
        elif is_empty:
            # A column whose bounds are still to be found needs declared ones before values may be missing in it.
            cure = f"mend the cell, leave the record out, or say {_flags_for_missing(column.name)}"
        words = "is empty" if not cells[at] else f"is {what}"
        rows.faults.append(Fault(f"column {column.name!r} {words}", cure, rows.lines[at]))
    return unreadable


def category_numbers(rows: TableRows, column: Column) -> NDArray[np.int64]:
    """Returns the category number of each record in a column; where other names are allowed, they count one past the
    last.
    """
    assert column.categories is not None
    # An undeclared name goes to `*` where that is declared, and is a fault elsewhere.
    by_name: Mapping[str, int] = {name: place for place, name in enumerate(column.categories)}
    other = by_name.get(OTHERS, len(by_name))
    categories = [by_name.get(cell, -1) for cell in rows.column(column.name)]
    if column.refuses_others:
        for at in (at for at, place in enumerate(categories) if place < 0):
            fault = Fault(
                f"column {column.name!r} holds none of its {len(by_name)} declared categories",
                f"mend the cell, declare the category, or declare {OTHERS!r} for every other one",
                rows.lines[at],
            )
            rows.faults.append(fault)
    return np.array([other if place < 0 else place for place in categories], dtype=np.int64)


def _hashed_places(cells: Sequence[str], places: int) -> NDArray[np.int64]:
    """Returns the place that each cell of a hashed column becomes, by a public hash, which nobody's records have a part
    in.

    >>> _hashed_places(["Lima", "Oslo", "Lima"], 16).tolist()
    [15, 12, 15]
    """
    known = {
        cell: int.from_bytes(hashlib.blake2b(cell.encode(), digest_size=8).digest(), "big") % places
        for cell in set(cells)
    }
    return np.array([known[cell] for cell in cells], dtype=np.int64)


def parse_number(cell: str) -> float | None:
    """Returns the cell of a column, when it is turned into numbers, as a finite number, or None.

    >>> parse_number("1e3"), parse_number("nan"), parse_number("1_000")
    (1000.0, None, None)
    """
    try:
        parsed = float(cell)
    except ValueError:
        return None
    return parsed if math.isfinite(parsed) and "_" not in cell else None


def _infer_column(rows: TableRows, name: str) -> Column:
    """Returns how one of the columns of the user's own table becomes numbers where nothing was declared, by what its
    cells hold: a number, or the categories that occur.
    """
    cells = rows.column(name)
    not_numbers = [at for at, cell in enumerate(cells) if parse_number(cell) is None]
    if not not_numbers:
        return Column(name)
    # Mostly numbers: the others are faults, which are entered when the column is encoded.
    if len(not_numbers) < len(cells) / 2:
        for at in not_numbers:
            is_empty = cells[at].lower() in MISSING_MARKS
            what = "is empty" if is_empty else "is no number"
            cure = f"mend the cell, leave the record out, or declare the column's categories (--categories '{name}=…')"
            if is_empty:
                cure = f"mend the cell, leave the record out, or say {_flags_for_missing(name)}"
            fault = Fault(f"column {name!r} holds numbers in most records and {what}", cure, rows.lines[at])
            rows.faults.append(fault)
        return Column(name, categories=(OTHERS,), refuses_others=False)
    # In alphabetical order, which does not depend on the order of the records.
    categories = tuple(sorted(set(cells)))
    if len(categories) > MOST_CATEGORIES:
        rows.faults.append(_describe_many_names(name, cells))
    return Column(name, categories=categories, refuses_others=False)


def _describe_many_names(name: str, cells: Sequence[str]) -> Fault:
    """Returns the fault of a column with too many different cells for categories, with the cure for what they look like."""
    what, cure = describe_unread_form(cells) or (f"holds more than {MOST_CATEGORIES} different texts", "")
    drop = f"leave it out ({write_flag('--drop', name)})"
    if cure:
        return Fault(f"column {name!r} {what}", f"{cure}, or {drop}")
    filled = [cell for cell in cells if cell.lower() not in MISSING_MARKS]
    if all(parse_date(cell) is not None for cell in filled):
        # The days are the user's to declare: those of the records would be read off them.
        missing = f" {write_flag('--missing', name)}" if len(filled) < len(cells) else ""
        declare = f"say {write_flag('--dates', f'{name}=first:last')}{missing}, with days as in 2015-01-01"
        return Fault(f"column {name!r} holds dates without a first and a last day", f"{declare}, or {drop}")
    cure = (
        f"{drop}, hash it ({write_flag('--hashed', f'{name}=64')}), declare its categories, "
        f"or learn from this text alone ({write_flag('--text', name)})"
    )
    return Fault(f"column {name!r} {what}", cure)


def describe_unread_form(cells: Sequence[str]) -> tuple[str, str] | None:
    """Returns what the cells of a column are if all of them are numbers or dates in a form that is not read, and how to
    write them; None if they are something else.

    >>> describe_unread_form(["1,5", "2"])
    ('holds numbers with a decimal comma', 'write them with a point, as in 1.5')
    """
    filled = [cell for cell in cells if cell.lower() not in MISSING_MARKS]
    if not filled:
        return None
    if any("," in cell for cell in filled) and all(_DECIMAL_COMMA.fullmatch(cell) for cell in filled):
        return "holds numbers with a decimal comma", "write them with a point, as in 1.5"
    if all(_SLASHED_DATE.fullmatch(cell) for cell in filled):
        return (
            "holds dates with slashes, whose day and month could be taken for one another",
            "write them as in 2020-01-31",
        )
    return None


def _flags_for_missing(name: str) -> str:
    """Returns the flags under which values of a column of numbers may be missing."""
    return f"{write_flag('--bounds', f'{name}=low:high')} {write_flag('--missing', name)}"


def _refuse_unknown_names(rows: TableRows, declared: DeclaredColumns, leave_out: Sequence[str]) -> None:
    """Raises if a name to be declared or left out is none of the columns of the user's own table, because a misspelt
    one would go unnoticed.
    """
    for flag, named in (*declared.by_flag(), ("--drop", leave_out)):
        for name in named:
            rows.column(name, flag)
