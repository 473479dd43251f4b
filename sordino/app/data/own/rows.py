"""Reads a table as text: names of columns, a row of cells for each record, and the line of each.

    CSV        a line of names, then a line for each record; quotes as in RFC 4180, blank lines are passed over
    JSON Lines one object for each record, all with the same fields; numbers, text and true or false
    Parquet    if pyarrow is there

Nothing is guessed from the cells here.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

import numpy as np

from sordino.app.data.own.bad_file import BadFile, Fault, check_names, read_text
from sordino.app.suggestions import did_you_mean

_DELIMITERS = ",;\t|"
"""The delimiters of CSV files, in the order in which they are looked for."""
LONGEST_CELL = 1_000_000
"""Characters of a cell: a quote that is never closed makes one of the rest of the file."""


@dataclass(frozen=True)
class TableRows:
    """The names and cells of a table as they are written in a file."""

    path: Path
    columns: tuple[str, ...]
    cells: list[list[str]]
    lines: list[int]
    """Where each row begins; of a Parquet file, its number."""
    faults: list[Fault] = field(default_factory=list)
    """What was found wrong so far; whoever has read all that is needed raises them together."""

    def column(self, name: str, flag: str = "--data") -> list[str]:
        """Returns all cells of one column of a user's rows; a missing column is refused with the names of those that
        exist.
        """
        if name not in self.columns:
            cure = f"there is {', '.join(self.columns)}{did_you_mean(name, self.columns)}"
            raise BadFile(self.path, f"has no column {name!r}, which {flag} names", cure)
        place = self.columns.index(name)
        return [row[place] for row in self.cells]


def read_table(path: Path, delimiter: str | None = None) -> TableRows:
    """Returns the rows of a user's table as text; the reader is chosen by the ending of the file's name."""
    # The name decides the reader; guessing by content would take one file for another.
    ending = path.suffix.lower()
    if ending not in READERS:
        raise BadFile(
            path,
            f"a file that ends in {ending or 'nothing'!r}",
            f"need {', '.join(READERS)}, .npz, or a folder of images",
        )
    table = READERS[ending](path, delimiter)
    if not table.cells and not table.faults:
        raise BadFile(path, "has names of columns and no records", "need a line for each record")
    return table


def rows_from_records(records: Sequence[Mapping[str, Any]]) -> TableRows:
    """Returns a user's rows that are in memory as a table; the first row decides which columns there are.

    >>> rows_from_records([{"age": 41, "city": "Lima"}]).cells
    [['41', 'Lima']]
    """
    # Rows in memory have no file, so messages name them by their number.
    path = Path("records")
    if not records:
        raise BadFile(path, "no rows were given", "need one for each record")
    columns = tuple(str(name) for name in records[0])
    cells = []
    for number, record in enumerate(records, start=1):
        lacking = next((name for name in columns if name not in record), None)
        if lacking is not None:
            raise BadFile(path, f"lacks the field {lacking!r}", "give every record the same fields", number)
        cells.append([_format_cell(path, name, record[name], number) for name in columns])
    return TableRows(path, columns, cells, list(range(1, len(cells) + 1)))


def _read_csv(path: Path, delimiter: str | None) -> TableRows:
    """Reads the rows of a user's CSV or TSV file with a limit on the size of a cell."""
    if delimiter is not None and len(delimiter) != 1:
        raise ValueError(f"delimiter={delimiter!r}: need one character")
    text = read_text(path)
    if delimiter is None:
        delimiter = "\t" if path.suffix.lower() == ".tsv" else _find_delimiter(text)
    # The limit of the csv module is the process's, so it is put back.
    former_limit = csv.field_size_limit(LONGEST_CELL)
    try:
        return _read_csv_rows(path, text, delimiter)
    finally:
        csv.field_size_limit(former_limit)


def _find_delimiter(text: str) -> str:
    """Returns the delimiter between the cells of a user's CSV rows, read off the line of names: a comma unless there is
    none in it.

    >>> _find_delimiter("age;city")
    ';'
    """
    names = next((line for line in text.splitlines() if line.strip()), "")
    return next((mark for mark in _DELIMITERS if mark in names), ",")


def _read_csv_rows(path: Path, text: str, separator: str) -> TableRows:
    """Reads the rows of a user's CSV file and checks that all have as many cells as there are names."""
    reader = csv.reader(io.StringIO(text, newline=""), delimiter=separator, skipinitialspace=True, strict=True)
    columns: tuple[str, ...] = ()
    cells: list[list[str]] = []
    lines: list[int] = []
    faults: list[Fault] = []
    while True:
        # A record may span several lines; errors name the one in which it begins.
        line = reader.line_num + 1
        try:
            row = next(reader, None)
        except csv.Error as error:
            raise _csv_error(path, line, str(error)) from error
        if row is None:
            return TableRows(path, columns, cells, lines, faults)
        # Blank lines are allowed; a row of another length is a fault that is told with all others.
        row = [cell.strip() for cell in row]
        if not any(row):
            continue
        # The first line that is not blank holds the names.
        if not columns:
            columns = _check_header(path, row, separator)
            continue
        if len(row) != len(columns):
            what = f"{len(row)} cells where the first line has {len(columns)} names"
            faults.append(Fault(what, "put quotes around cells that hold the delimiter, or mend the row", line))
            continue
        cells.append(row)
        lines.append(line)


def _check_header(path: Path, row: list[str], separator: str) -> tuple[str, ...]:
    """Returns the names of the columns above a table's rows; suggests another delimiter if there seems to be only one
    column.
    """
    # A file in one column whose name holds another separator was surely written with that one.
    likely_separator = next(
        (mark for mark in _DELIMITERS if mark != separator and len(row) == 1 and mark in row[0]), None
    )
    if likely_separator is not None:
        raise BadFile(
            path,
            f"one column by {separator!r}, and its name holds {likely_separator!r}",
            f"say --delimiter {likely_separator!r}",
            1,
        )
    return check_names(path, row)


def _csv_error(path: Path, line: int, parser_message: str) -> BadFile:
    """Returns the error for a CSV file whose rows cannot be parsed, with its cure."""
    if "field larger" in parser_message:
        return BadFile(
            path, f"a cell of more than {LONGEST_CELL:,} characters", "close its quotes, or leave the record out", line
        )
    if "end of data" in parser_message:
        return BadFile(path, "quotes that are opened here are never closed", "close them, or double them", line)
    return BadFile(path, f"not CSV ({parser_message})", "quotes inside a quoted cell are doubled", line)


def _read_json_lines(path: Path, delimiter: str | None) -> TableRows:
    """Reads the rows of a user's file with one JSON object a line, all with the same fields."""
    columns: tuple[str, ...] = ()
    cells: list[list[str]] = []
    lines: list[int] = []
    for line, written in enumerate(read_text(path).split("\n"), start=1):
        if not written.strip():
            continue
        # Values keep the line they stand on, so that every fault can name it.
        record = _parse_record(path, written, line)
        columns = columns or check_names(path, list(record))
        # The first record decides which fields there are.
        missing = next((name for name in columns if name not in record), None)
        more = next((name for name in record if name not in columns), None)
        if missing is not None or more is not None:
            what = (
                f"lacks the field {missing!r}"
                if missing is not None
                else f"has a field {more!r} that the first has not"
            )
            raise BadFile(path, what, "give every record the same fields", line)
        cells.append([_format_cell(path, name, record[name], line) for name in columns])
        lines.append(line)
    return TableRows(path, columns, cells, lines)


def _parse_record(path: Path, written: str, line: int) -> Mapping[str, Any]:
    """Returns the JSON object on a line of a user's file as a row, or raises with the number of the line."""
    try:
        record = json.loads(written)
    except (ValueError, RecursionError) as error:
        raise BadFile(path, "not JSON", "need one object on each line, on one line each", line) from error
    if not isinstance(record, dict) or not record:
        raise BadFile(path, "not an object with fields", 'need {"field": value, …} on each line', line)
    return record


def _format_cell(path: Path, name: str, value: Any, line: int) -> str:
    """Returns a JSON value as the text of a cell in a user's row."""
    # Every value becomes text, as in a CSV, so that one encoder serves all kinds of files.
    if isinstance(value, bool) or value is None:
        return "" if value is None else str(value).lower()
    if isinstance(value, date | np.generic):  # of Parquet files and data frames
        value = (
            value.item()
            if isinstance(value, np.generic)
            else value.isoformat(" ")
            if isinstance(value, datetime)
            else value.isoformat()
        )
    if not isinstance(value, str | int | float):
        raise BadFile(
            path, f"the field {name!r} is a {type(value).__name__}", "need numbers, text, or true and false", line
        )
    # repr keeps every digit of a number.
    text = value.strip() if isinstance(value, str) else repr(value)
    if len(text) > LONGEST_CELL:
        raise BadFile(
            path, f"the field {name!r} has more than {LONGEST_CELL:,} characters", "leave the record out", line
        )
    return text


def _read_parquet(path: Path, delimiter: str | None) -> TableRows:
    """Reads the rows of a user's Parquet file, if pyarrow is installed."""
    try:
        from pyarrow import ArrowException, parquet
    except ImportError as error:
        raise BadFile(path, "Parquet needs pyarrow", "pip install pyarrow, or save it as CSV") from error
    try:
        table = parquet.read_table(path)
    except (ArrowException, OSError) as error:
        raise BadFile(path, "not a Parquet file", "save it anew, or as CSV") from error
    # Values become the same text as in a CSV, so that the same schema fits.
    columns = check_names(path, list(table.column_names))
    rows = zip(*(column.to_pylist() for column in table.columns), strict=True)
    cells = [
        [_format_cell(path, name, value, line) for name, value in zip(columns, row, strict=True)]
        for line, row in enumerate(rows, start=1)
    ]
    return TableRows(path, columns, cells, list(range(1, len(cells) + 1)))


READERS: Mapping[str, Callable[[Path, str | None], TableRows]] = {
    ".csv": _read_csv,
    ".tsv": _read_csv,
    ".jsonl": _read_json_lines,
    ".parquet": _read_parquet,
}
