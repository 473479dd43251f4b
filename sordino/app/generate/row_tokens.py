"""Rows of a table as tokens, one for each cell, and tokens as rows again, by what is declared of the columns.

    categories       one token for each name
    whole numbers    one token for each number, if the declared range holds at most 101
    other numbers    one token for each of 32 bins: of equal width, or growing with the number if the range begins at 0 or
                     above and is longer than 1,000; the lowest number has a bin of its own, since it is often "none"
    dates            32 bins of equal width
    missing          one token more, if the column is declared to have missing cells

Privacy: the tokens are a function of the declared columns alone, and the tokens of a row are a function of that row. A
column of which nothing is declared is refused, because its categories or bounds would be read off the records.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date, timedelta

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sordino.app.data.own.bad_file import BadFile, Fault, raise_faults, write_flag
from sordino.app.data.own.columns import MISSING_MARKS, parse_number
from sordino.app.data.own.declared_columns import OTHERS, DeclaredColumns, parse_date
from sordino.app.data.own.rows import TableRows

_BINS = 32
_MOST_WHOLE = 100
"""The longest range of whole numbers in which every number has a token of its own."""
_LONG_RANGE = 1000.0


@dataclass(frozen=True)
class CellTokens:
    """The tokens of one column: names, or the edges of bins, and one for a missing cell."""

    name: str
    categories: tuple[str, ...] = ()
    edges: tuple[float, ...] = ()
    """Of the bins of numbers; dates are counted in days."""
    is_whole: bool = False
    is_date: bool = False
    may_be_missing: bool = False

    @property
    def count(self) -> int:
        """How many tokens the column has."""
        return (len(self.categories) or len(self.edges) - 1) + self.may_be_missing

    def encode(self, rows: TableRows) -> NDArray[np.int64]:
        """Returns the tokens of the cells in a column of rows; a cell that is none of its values is entered in
        `rows.faults`.
        """
        numbers = {name: number for number, name in enumerate(self.categories)}
        tokens = np.zeros(len(rows.cells), dtype=np.int64)
        for place, (cell, line) in enumerate(zip(rows.column(self.name), rows.lines, strict=True)):
            # A value outside the declared ones counts as one of the others, where the column declares such a value.
            token = numbers.get(cell, numbers.get(OTHERS)) if self.categories else self._bin_of(cell)
            # Faults are collected, so that one message can name all of them.
            if token is None:
                what = f"a cell of column {self.name!r} is not one of its declared values"
                rows.faults.append(Fault(what, "mend the cell, or declare --categories, --bounds or --missing", line))
                continue
            tokens[place] = token
        return tokens

    def _bin_of(self, cell: str) -> int | None:
        """Returns the token of a cell that holds a number or a date: its bin in the declared range; None if the cell is
        neither.
        """
        # Missing values have a token of their own after all bins.
        if cell.lower() in MISSING_MARKS:
            return self.count - 1 if self.may_be_missing else None
        day = parse_date(cell) if self.is_date else None
        value = float(day.toordinal()) if day is not None else None if self.is_date else parse_number(cell)
        if value is None:
            return None
        # Edges are sorted; a value outside of the declared range goes to the first or the last bin, and is no fault.
        found = int(np.searchsorted(self.edges, value, side="right")) - 1
        return min(max(found, 0), len(self.edges) - 2)

    def decode(self, tokens: Sequence[int], generator: np.random.Generator) -> list[str]:
        """Returns a cell for each token; a number is drawn evenly from its bin."""
        return [self._write_cell(token, generator) for token in tokens]

    def _write_cell(self, token: int, generator: np.random.Generator) -> str:
        """Returns the cell of a row that one token stands for."""
        if self.categories:
            return self.categories[token]
        if self.may_be_missing and token == self.count - 1:
            return ""
        low, high = self.edges[token], self.edges[token + 1]
        value = generator.uniform(low, high)
        if self.is_date:
            return date.fromordinal(math.floor(value)).isoformat()
        if self.is_whole:
            # Edges of whole numbers lie half-way between two, so the nearest one is in the bin.
            return str(min(math.floor(value + 0.5), math.ceil(high) - 1))
        return f"{value:.6g}"


class RowTokens:
    """The tokens of all columns of a table, the target first."""

    def __init__(self, columns: Sequence[CellTokens]) -> None:
        self.columns = tuple(columns)

    @property
    def names(self) -> list[str]:
        """The names of the columns in the order of their tokens."""
        return [column.name for column in self.columns]

    @property
    def counts(self) -> list[int]:
        """How many tokens each column has."""
        return [column.count for column in self.columns]

    def encode(self, rows: TableRows) -> Tensor:
        """Returns the tokens of every row, (N, columns); raises with all faults of the file at once."""
        tokens = np.stack([column.encode(rows) for column in self.columns], axis=1)
        raise_faults(rows.path, rows.faults)
        return torch.from_numpy(tokens)

    def decode(self, tokens: Tensor, generator: np.random.Generator) -> list[list[str]]:
        """Returns the rows of tokens, (N, columns), as cells in the order of `names`."""
        cells = [column.decode(tokens[:, place].tolist(), generator) for place, column in enumerate(self.columns)]
        return [list(row) for row in zip(*cells, strict=True)]


def choose_row_tokens(
    rows: TableRows, declared: DeclaredColumns, target: str | None, classes: Sequence[str] | None, drop: Sequence[str]
) -> RowTokens:
    """Returns the tokens of a table's columns by what is declared of them; refuses columns of which nothing is."""
    # The target comes first, so that everything else is drawn given the class, and few steps teach what tells it.
    ordered = ([] if target is None else [target]) + [name for name in rows.columns if name not in (target, *drop)]
    # A target that is no column is refused by the option's name before anything else is.
    if target is not None:
        rows.column(target, "--target")
    columns, undeclared = [], []
    for name in ordered:
        # The first declaration that fits decides; values are never read off the records, which are private.
        if name == target and classes:
            columns.append(CellTokens(name, tuple(classes)))
        elif name in declared.categories:
            columns.append(CellTokens(name, declared.categories[name]))
        elif name in declared.bounds:
            columns.append(_number_tokens(name, *declared.bounds[name], may_be_missing=name in declared.missing))
        elif name in declared.dates:
            columns.append(_date_tokens(name, *declared.dates[name], may_be_missing=name in declared.missing))
        else:
            undeclared.append(name)
    # A hashed column cannot be written again: many names are in one place.
    hashed = [name for name in undeclared if name in declared.hashed]
    if hashed:
        raise BadFile(
            rows.path,
            f"{', '.join(hashed)}: hashed columns can be learnt from, but not written again",
            f"leave them out ({write_flag('--drop', ','.join(hashed))}; in a schema move them to `drop`), "
            "or declare their categories",
        )
    if undeclared:
        raise BadFile(
            rows.path,
            f"nothing is declared of {', '.join(undeclared)}, so their values would be read off the records",
            "give --bounds, --categories or --dates, leave the columns out by --drop, or give --schema FILE "
            "(`sordino data inspect` proposes one)",
        )
    # A single column has no relations to learn, and its target would have nothing to be told from.
    if len(columns) < 2:
        raise BadFile(rows.path, "fewer than two columns are left", "declare more of them")
    return RowTokens(columns)


def _number_tokens(name: str, low: float, high: float, *, may_be_missing: bool) -> CellTokens:
    """Returns the tokens of a column of numbers by its declared range alone."""
    is_whole = low.is_integer() and high.is_integer()
    if is_whole and high - low <= _MOST_WHOLE:
        edges = np.arange(low, high + 2) - 0.5
    elif low >= 0 and high - low > _LONG_RANGE:
        # The first bin holds the lowest number alone; the others grow evenly on a logarithmic scale. Between whole
        # numbers an edge lies half-way, so that every bin holds one.
        growing = low + np.expm1(np.linspace(math.log1p(0.5), math.log1p(high - low + 0.5), _BINS))
        edges = np.concatenate([[low - 0.5], growing])
        if is_whole:
            edges = np.unique(np.floor(edges) + 0.5)
    else:
        is_whole = False
        edges = np.linspace(low, high, _BINS + 1)
    return CellTokens(name, edges=tuple(edges.tolist()), is_whole=is_whole, may_be_missing=may_be_missing)


def _date_tokens(name: str, first: str, last: str, *, may_be_missing: bool) -> CellTokens:
    """Returns the tokens of a column of dates by its declared first and last day."""
    begin = date.fromisoformat(first)
    end = date.fromisoformat(last) + timedelta(days=1)
    bins = min(_BINS, (end - begin).days)
    edges = np.linspace(begin.toordinal(), end.toordinal() - 1e-6, bins + 1)
    return CellTokens(name, edges=tuple(edges.tolist()), is_date=True, may_be_missing=may_be_missing)
