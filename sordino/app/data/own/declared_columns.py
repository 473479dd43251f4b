"""What a user declares about columns: bounds, dates, categories, from flags or from a TOML file.

    --bounds age=0:100,hours=0:99          --categories 'sex=Female|Male;country=Peru|Cuba|*'
    --dates joined=2015-01-01:2025-12-31   --hashed city=64          --missing age,joined

    target = "left"                        [categories]
    drop = ["id"]                          country = ["Peru", "Cuba", "*"]
    missing = ["age", "joined"]
                                           [dates]
    [bounds]                               joined = ["2015-01-01", "2025-12-31"]
    age = [0, 100]
                                           [hashed]
                                           city = 64

`*` stands for every other name. Such a file is a schema; `sordino data inspect FILE` proposes one.

Privacy: what is declared is public, from what the columns mean and not from what is in them. A schema that says
`read_off_records = true` was made by looking at the records, and the claim says so.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from pathlib import Path
from typing import Any

from sordino import validate
from sordino.app.data.own.bad_file import BadFile, read_text, write_flag

OTHERS = "*"
"""The category of whatever was not declared."""
_DATE_FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S", "%Y-%m-%dT%H:%M:%S")
_DATE_BEGINS = re.compile(r"\d{1,4}[-/.]\d{1,2}[-/.]\d{1,4}")
_MOST_PLACES = 4096

Bounds = tuple[float, float]
Dates = tuple[str, str]


@dataclass(frozen=True)
class DeclaredColumns:
    """What is known of the columns before anything is read."""

    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, Dates] = field(default_factory=dict)
    hashed: Mapping[str, int] = field(default_factory=dict)
    missing: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Checks what was declared of each column, and that each is of one kind."""
        # Every declaration is checked by its kind and kept in one form.
        checks = {
            "bounds": _check_bounds,
            "categories": _check_categories,
            "dates": _check_dates,
            "hashed": _check_places,
        }
        for kind, check in checks.items():
            object.__setattr__(self, kind, {name: check(name, given) for name, given in getattr(self, kind).items()})
        object.__setattr__(self, "missing", tuple(self.missing))
        # A column is of one kind; two declarations would contradict each other.
        kinds = [(name, kind) for kind in checks for name in getattr(self, kind)]
        for place, (name, kind) in enumerate(kinds):
            for other, other_kind in kinds[:place]:
                if name == other:
                    raise ValueError(f"column {name!r}: has {other_kind} and {kind}; it is of one kind, say which")
        # A missing number becomes the middle of its range, so there must be a range.
        for name in self.missing:
            if name not in self.bounds and name not in self.dates:
                bounds = write_flag("--bounds", f"{name}=low:high")
                raise ValueError(f"missing {name!r}: needs the middle of a declared range; give {bounds}, or --dates")

    def speaks_of(self, name: str) -> bool:
        """Returns whether something was declared of a column."""
        return any(name in kind for kind in (self.bounds, self.categories, self.dates, self.hashed))

    def by_flag(self) -> list[tuple[str, Iterable[str]]]:
        """Returns the names of the declared columns that each flag speaks of."""
        return [
            ("--bounds", self.bounds),
            ("--categories", self.categories),
            ("--dates", self.dates),
            ("--hashed", self.hashed),
            ("--missing", self.missing),
        ]

    def merged_with(self, other: DeclaredColumns) -> DeclaredColumns:
        """Returns both declarations of columns; the other one wins where both speak of a column."""

        def merge(mine: Mapping[str, Any], theirs: Mapping[str, Any]) -> dict[str, Any]:
            return {**{name: value for name, value in mine.items() if not other.speaks_of(name)}, **theirs}

        return DeclaredColumns(
            merge(self.bounds, other.bounds),
            merge(self.categories, other.categories),
            merge(self.dates, other.dates),
            merge(self.hashed, other.hashed),
            tuple(dict.fromkeys((*self.missing, *other.missing))),
        )


@dataclass(frozen=True)
class Schema:
    """A schema file: what is declared of the columns, and what is to be learnt from them."""

    columns: DeclaredColumns = field(default_factory=DeclaredColumns)
    target: str | None = None
    classes: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    ignore_label: str | None = None
    read_off_records: bool = False
    """Whether it was made by looking at the records and nobody has replaced that by what is known of them."""


_KINDS = ("bounds", "categories", "dates", "hashed")
_LISTS = ("classes", "drop", "missing")
_TEXTS = ("target", "ignore_label")


def parse_bounds(text: str) -> dict[str, Bounds]:
    """Returns the bounds of columns that a user declares by a flag.

    >>> parse_bounds("age=0:100,height=0.5:2.5")
    {'age': (0.0, 100.0), 'height': (0.5, 2.5)}
    """
    # A name may hold an equals sign, so the last one counts.
    bounds = {}
    for part in filter(None, text.split(",")):
        name, equals, ends = part.rpartition("=")
        low, colon, high = ends.partition(":")
        try:
            bounds[name.strip()] = float(low), float(high)
        except ValueError:
            colon = ""
        if not (name.strip() and equals and colon):
            raise ValueError(f"bounds {part!r}: need name=low:high, as in age=0:100; several with commas")
    return bounds


def parse_dates(text: str) -> dict[str, Dates]:
    """Returns the first and last days of date columns that a user declares by a flag.

    >>> parse_dates("joined=2015-01-01:2025-12-31")
    {'joined': ('2015-01-01', '2025-12-31')}
    """
    dates = {}
    for part in filter(None, text.split(",")):
        name, equals, ends = part.rpartition("=")
        first, colon, last = ends.partition(":")
        if not (name.strip() and equals and colon):
            raise ValueError(f"dates {part!r}: need name=first:last, as in joined=2015-01-01:2025-12-31")
        dates[name.strip()] = first.strip(), last.strip()
    return dates


def parse_hashed(text: str) -> dict[str, int]:
    """Returns the numbers of places of hashed columns that a user declares by a flag.

    >>> parse_hashed("city=64,street=128")
    {'city': 64, 'street': 128}
    """
    hashed = {}
    for part in filter(None, text.split(",")):
        name, _, places = part.rpartition("=")
        if not name.strip() or not places.strip().isdigit():
            raise ValueError(f"hashed {part!r}: need name=places, as in city=64; several with commas")
        hashed[name.strip()] = int(places)
    return hashed


def parse_categories(text: str) -> dict[str, tuple[str, ...]]:
    """Returns the categories of columns that a user declares by a flag.

    >>> parse_categories("sex=Female|Male;country=Peru|*")
    {'sex': ('Female', 'Male'), 'country': ('Peru', '*')}
    """
    # Names of categories may hold commas, so semicolons stand between columns.
    categories = {}
    for part in filter(None, text.split(";")):
        name, equals, names = part.partition("=")
        if not (name.strip() and equals):
            raise ValueError(
                f"categories {part!r}: need name=one|another, as in sex=Female|Male; several with semicolons"
            )
        categories[name.strip()] = tuple(one.strip() for one in names.split("|"))
    return categories


def parse_date(cell: str) -> date | None:
    """Returns a cell of a column declared as dates as a day, or None if it is none.

    >>> parse_date("2020-01-31"), parse_date("31.1.2020"), parse_date("1/31/2020")
    (datetime.date(2020, 1, 31), datetime.date(2020, 1, 31), None)
    """
    if not _DATE_BEGINS.match(cell):  # most cells of a table are no dates, and trying every form takes long
        return None
    # The forms are tried in a fixed order, and an American date is none of them, because it cannot be told from a
    # European one.
    for form in _DATE_FORMATS:
        try:
            return datetime.strptime(cell, form).date()
        except ValueError:
            continue
    return None


def read_schema(path: Path) -> Schema:
    """Reads the declared columns from a TOML file with the tables [bounds], [categories], [dates] and [hashed], and
    what is to be learnt.
    """
    try:
        table = tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadFile(path, f"not TOML ({error})", "see `sordino train --help`, --schema") from error
    # Every entry is checked by name and kind, because a misspelt one would go unnoticed.
    known = (*_KINDS, *_LISTS, *_TEXTS, "read_off_records")
    # A misspelt table would leave its columns undeclared.
    unknown = [name for name in table if name not in known]
    if unknown:
        raise BadFile(path, f"has {', '.join(table)}", f"need of {', '.join(known)}")
    for name, value in table.items():
        right = (
            isinstance(value, dict)
            if name in _KINDS
            else isinstance(value, list) and all(isinstance(one, str) for one in value)
            if name in _LISTS
            else isinstance(value, str)
            if name in _TEXTS
            else isinstance(value, bool)
        )
        if not right:
            need = "a table" if name in _KINDS else "a list of names" if name in _LISTS else "text, or true or false"
            raise BadFile(path, f"{name} is {value!r}", f"need {need}")
    # `DeclaredColumns` checks the values; here only names and kinds were checked.
    columns = DeclaredColumns(**{kind: table.get(kind, {}) for kind in _KINDS}, missing=tuple(table.get("missing", ())))
    classes = tuple(table["classes"]) if "classes" in table else None
    read_off = table.get("read_off_records", False)
    return Schema(
        columns, table.get("target"), classes, tuple(table.get("drop", ())), table.get("ignore_label"), read_off
    )


def _check_bounds(name: str, given: Any) -> Bounds:
    """Returns the bounds declared of a column as two finite numbers, or raises."""
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ValueError(f"bounds of {name!r}: {given!r}: need a lower and an upper one")
    low, high = (validate.number(f"bounds of {name!r}", end) for end in given)
    if not -float("inf") < low < high < float("inf"):
        raise ValueError(f"bounds of {name!r}: {low:g} to {high:g}: need two finite numbers, the lower one first")
    return low, high


def _check_categories(name: str, given: Any) -> tuple[str, ...]:
    """Returns the categories declared of a column, or raises if they are no list of different names."""
    if not isinstance(given, list | tuple) or not given or not all(isinstance(one, str) for one in given):
        raise ValueError(f"categories of {name!r}: {given!r}: need a list of names")
    if len(set(given)) < len(given):
        raise ValueError(f"categories of {name!r}: one is there twice; need each once")
    return tuple(given)


def _check_dates(name: str, given: Any) -> Dates:
    """Returns the first and the last day declared of a column in ISO form, or raises."""
    # TOML has dates of its own; in a flag they are text.
    ends = (
        [one if isinstance(one, date) else parse_date(str(one)) for one in given]
        if isinstance(given, list | tuple)
        else []
    )
    if len(ends) != 2 or ends[0] is None or ends[1] is None or not ends[0] < ends[1]:
        raise ValueError(f"dates of {name!r}: {given!r}: need a first and a last day, as in 2015-01-01")
    return ends[0].isoformat(), ends[1].isoformat()


def _check_places(name: str, given: Any) -> int:
    """Returns the number of hashed places declared of a column, or raises if there are fewer than two or too many."""
    places = validate.count(f"hashed {name!r}", given, least=2)
    if places > _MOST_PLACES:
        raise ValueError(f"hashed {name!r}: {places} places; need {_MOST_PLACES} at most")
    return places
