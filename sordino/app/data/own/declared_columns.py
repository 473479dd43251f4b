"""What a user declares about columns: bounds and categories, from flags or from a TOML file.

    --bounds age=0:100,hours=0:99          --categories 'sex=Female|Male;country=Peru|Cuba|*'

    [bounds]                               [categories]
    age = [0, 100]                         country = ["Peru", "Cuba", "*"]

`*` stands for every other name.

Privacy: what is declared is public, from what the columns mean and not from what is in them.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sordino import validate
from sordino.app.data.own.bad_file import BadFile, read_text

OTHERS = "*"
"""The category of whatever was not declared."""

Bounds = tuple[float, float]


@dataclass(frozen=True)
class DeclaredColumns:
    """What is known of the columns before anything is read."""

    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        object.__setattr__(self, "bounds", {name: _check_bounds(name, given) for name, given in self.bounds.items()})
        object.__setattr__(
            self, "categories", {name: _check_categories(name, given) for name, given in self.categories.items()}
        )
        for name in self.bounds:
            if name in self.categories:
                raise ValueError(f"column {name!r}: has bounds and categories; it is a number or a name, say which")

    def merged_with(self, other: DeclaredColumns) -> DeclaredColumns:
        """Returns both declarations; the other one wins where both speak of a column."""
        return DeclaredColumns({**self.bounds, **other.bounds}, {**self.categories, **other.categories})


def parse_bounds(text: str) -> dict[str, Bounds]:
    """Returns the bounds given by a flag.

    >>> parse_bounds("age=0:100,height=0.5:2.5")
    {'age': (0.0, 100.0), 'height': (0.5, 2.5)}
    """
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


def parse_categories(text: str) -> dict[str, tuple[str, ...]]:
    """Returns the categories given by a flag.

    >>> parse_categories("sex=Female|Male;country=Peru|*")
    {'sex': ('Female', 'Male'), 'country': ('Peru', '*')}
    """
    categories = {}
    for part in filter(None, text.split(";")):
        name, equals, names = part.partition("=")
        if not (name.strip() and equals):
            raise ValueError(
                f"categories {part!r}: need name=one|another, as in sex=Female|Male; several with semicolons"
            )
        categories[name.strip()] = tuple(one.strip() for one in names.split("|"))
    return categories


def read_declarations(path: Path) -> DeclaredColumns:
    """Reads a TOML file with the tables [bounds] and [categories]."""
    try:
        table = tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise BadFile(path, f"not TOML ({error})", "see `sordino train --help`, --schema") from error
    unknown = [name for name in table if name not in ("bounds", "categories")]
    if unknown or not all(isinstance(part, dict) for part in table.values()):
        raise BadFile(path, f"has {', '.join(table)}", "need the tables [bounds] and [categories]")
    return DeclaredColumns(table.get("bounds", {}), table.get("categories", {}))


def _check_bounds(name: str, given: Any) -> Bounds:
    """Returns the bounds of a column as two finite numbers, or raises."""
    if not isinstance(given, list | tuple) or len(given) != 2:
        raise ValueError(f"bounds of {name!r}: {given!r}: need a lower and an upper one")
    low, high = (validate.number(f"bounds of {name!r}", end) for end in given)
    if not -float("inf") < low < high < float("inf"):
        raise ValueError(f"bounds of {name!r}: {low:g} to {high:g}: need two finite numbers, the lower one first")
    return low, high


def _check_categories(name: str, given: Any) -> tuple[str, ...]:
    if not isinstance(given, list | tuple) or not given or not all(isinstance(one, str) for one in given):
        raise ValueError(f"categories of {name!r}: {given!r}: need a list of names")
    if len(set(given)) < len(given):
        raise ValueError(f"categories of {name!r}: one is there twice; need each once")
    return tuple(given)
