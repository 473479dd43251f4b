"""Turns the columns of a table into numbers: as declared, or else by looking at the records.

    bounds declared         cut to them and scaled to [−1, 1]
    categories declared     a column of 0 and 1 for each; another name is refused by its line, or is `*`
    nothing declared        a number if every cell is one, else a name. Numbers stay as they are: their bounds are found
                            privately, later. Names become the categories that there are.

Privacy: a record's numbers are made of its own cells. What a look told (`Scheme.read_off`) is not covered by a claim, which
has to say so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sordino.app.data.own.bad_file import BadFile
from sordino.app.data.own.declared_columns import OTHERS, Bounds, DeclaredColumns
from sordino.app.data.own.rows import TableRows

MOST_CATEGORIES = 100
"""Of a column about which nothing was declared: more are no categories."""


@dataclass(frozen=True)
class Column:
    """One column of the file: a number with bounds, a number without known bounds, or names."""

    name: str
    bounds: Bounds | None = None
    categories: tuple[str, ...] | None = None
    refuses_others: bool = True
    """Another name than these is refused."""

    @property
    def width(self) -> int:
        """How many numbers the column becomes."""
        return 1 if self.categories is None else len(self.categories)

    @property
    def titles(self) -> list[str]:
        """The titles of these numbers."""
        if self.categories is not None:
            return [f"{self.name}={one}" for one in self.categories]
        return [self.name if self.bounds is None else f"{self.name} in [{self.bounds[0]:g}, {self.bounds[1]:g}]"]


@dataclass(frozen=True)
class EncodingScheme:
    """How every column becomes numbers; columns without bounds come first."""

    columns: tuple[Column, ...]
    read_off: tuple[str, ...] = ()
    """What the records told without noise, in words."""

    @property
    def unbounded(self) -> int:
        """How many numbers, which come first, have bounds that are still to be found."""
        return sum(one.categories is None and one.bounds is None for one in self.columns)

    @property
    def titles(self) -> list[str]:
        """The titles of all numbers of a record, in order."""
        return [title for column in self.columns for title in column.titles]

    def encode(self, rows: TableRows) -> NDArray[np.float32]:
        """Returns the records as numbers, (N, numbers)."""
        made = [encode_column(rows, column) for column in self.columns]
        return np.concatenate(made, axis=1).astype(np.float32)


def choose_scheme(rows: TableRows, declared: DeclaredColumns, leave_out: Sequence[str]) -> EncodingScheme:
    """Returns the scheme by what was declared, and by looking at the rows where nothing was."""
    _refuse_unknown_names(rows, declared, leave_out)
    columns, inspected, names = [], [], []
    # A declared column is taken at its word. Looking at another one tells something, which is listed.
    for name in rows.columns:
        if name in leave_out:
            continue
        if name in declared.bounds or name in declared.categories:
            columns.append(declared_column(name, declared))
            continue
        inspected.append(name)
        column = _infer_column(rows, name)
        names += [name] if column.categories is not None else []
        columns.append(column)
    if not columns:
        raise BadFile(rows.path, "no column is left to learn from", "need one besides the target")
    # Columns without bounds come first, because a private release finds their bounds later.
    columns.sort(key=lambda one: (one.categories is not None, one.bounds is not None))
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
    """Returns a column about which something was declared."""
    if name in declared.bounds:
        return Column(name, bounds=declared.bounds[name])
    categories = declared.categories[name]
    return Column(name, categories=categories, refuses_others=OTHERS not in categories)


def encode_column(rows: TableRows, column: Column) -> NDArray[np.float64]:
    """Returns one column as numbers, (N, width)."""
    cells = rows.column(column.name)
    if column.categories is not None:
        return np.eye(len(column.categories) + 1)[category_numbers(rows, column)][:, : len(column.categories)]
    values = [parse_number(cell) for cell in cells]
    if None in values:
        row = values.index(None)
        empty = "is empty" if not cells[row] else "is no finite number"
        raise BadFile(
            rows.path, f"column {column.name!r} {empty}", "mend the cell or leave the record out", rows.lines[row]
        )
    numbers = np.array(values, dtype=np.float64).reshape(-1, 1)
    if column.bounds is None:
        return numbers
    low, high = column.bounds
    return 2 * (np.clip(numbers, low, high) - low) / (high - low) - 1


def category_numbers(rows: TableRows, column: Column) -> NDArray[np.int64]:
    """Returns the category number of each record; where other names are allowed, they count one past the last."""
    assert column.categories is not None
    by_name: Mapping[str, int] = {name: place for place, name in enumerate(column.categories)}
    other = by_name.get(OTHERS, len(by_name))
    categories = [by_name.get(cell, -1) for cell in rows.column(column.name)]
    if column.refuses_others and -1 in categories:
        raise BadFile(
            rows.path,
            f"column {column.name!r} holds none of its {len(by_name)} declared categories",
            f"mend the cell, declare the category, or declare {OTHERS!r} for every other one",
            rows.lines[categories.index(-1)],
        )
    return np.array([other if place < 0 else place for place in categories], dtype=np.int64)


def parse_number(cell: str) -> float | None:
    """Returns a cell as a finite number, or None.

    >>> parse_number("1e3"), parse_number("nan"), parse_number("1_000")
    (1000.0, None, None)
    """
    try:
        parsed = float(cell)
    except ValueError:
        return None
    return parsed if math.isfinite(parsed) and "_" not in cell else None


def _infer_column(rows: TableRows, name: str) -> Column:
    """Returns a column by what its cells hold: a number, or the categories that occur."""
    cells = rows.column(name)
    not_numbers = [at for at, cell in enumerate(cells) if parse_number(cell) is None]
    if not not_numbers:
        return Column(name)
    if len(not_numbers) < len(cells) / 2:
        raise BadFile(
            rows.path,
            f"column {name!r} holds numbers in most records and none here",
            f"mend the cell, leave the record out, or declare the column's categories (--categories '{name}=…')",
            rows.lines[not_numbers[0]],
        )
    categories = tuple(sorted(set(cells)))
    if len(categories) > MOST_CATEGORIES:
        raise BadFile(
            rows.path,
            f"column {name!r} holds text, and more than {MOST_CATEGORIES} different ones",
            f"leave it out (--drop {name}), declare its categories, or say --text {name}",
        )
    return Column(name, categories=categories, refuses_others=False)


def _refuse_unknown_names(rows: TableRows, declared: DeclaredColumns, leave_out: Sequence[str]) -> None:
    """Raises if a name in the declarations is no column, because a misspelt one would go unnoticed."""
    for flag, named in (("--bounds", declared.bounds), ("--categories", declared.categories), ("--drop", leave_out)):
        for name in named:
            rows.column(name, flag)
