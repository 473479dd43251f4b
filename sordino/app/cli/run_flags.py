"""The flags that `sordino train` and `sordino tune` share: the fields of a recipe, and own data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sordino.app.cli.dataclass_flags import Flag, flags_of
from sordino.app.data.own.declared_columns import DeclaredColumns, parse_bounds, parse_categories, read_declarations
from sordino.app.runs.own_file import OwnFile
from sordino.app.runs.recipe import SETTING_RECORDS, Recipe


@dataclass(frozen=True, kw_only=True)
class OwnFlags:
    """The flags of `sordino train --data`."""

    data: str | None = None
    """Own data: a .csv, .tsv, .jsonl, .parquet or .npz file, or a folder with a folder of images for each class."""
    target: str | None = None
    """The column, field or array that is to be learnt; its values are classes, or numbers with --loss squared."""
    text: str | None = None
    """The column or field that holds a text, which is then all that is learnt from."""
    bounds: str | None = None
    """Public bounds of columns, as in age=0:100,hours=0:99; those of other columns of numbers are found privately."""
    categories: str | None = None
    """Public categories of columns, as in 'sex=Female|Male;country=Peru|Cuba|*'; * is every other one."""
    classes: str | None = None
    """The public classes of the target, as in 'yes|no'."""
    schema: str | None = None
    """A TOML file with the tables [bounds] and [categories] in place of these flags."""
    drop: str | None = None
    """Columns to leave out, with commas."""
    test: str | None = None
    """Another such file or folder to test on; without it, a part of the data is held out."""
    held_out: float | None = None
    """The share that is held out for testing, 0.1 if it is not said; each record by a hash of itself."""
    delimiter: str | None = None
    """Between the cells of a CSV file, if it is no comma."""
    size: str | None = None
    """Make all images of this size, as in 32x32."""
    channels: int | None = None
    """Colours of images: 1 or 3; as in the first image if it is not said."""


def recipe_flags() -> Iterator[Flag]:
    """Yields one flag for every field of a recipe that can be set, record by record."""
    yield from flags_of(Recipe, ("task", "preparation", "privacy", "optimisation", "measured"))
    for record in SETTING_RECORDS:
        yield from flags_of(record)


def own_file_from_flags(flags: Mapping[str, Any]) -> OwnFile | None:
    """Creates an `OwnFile` from the flags of the command line; returns None without --data."""
    given_flags = {name: value for name, value in flags.items() if value is not None}
    if "data" not in given_flags:
        if given_flags:
            raise ValueError(f"--{next(iter(given_flags)).replace('_', '-')} without --data: which file is it about?")
        return None
    # Flags win over the schema file.
    declared = DeclaredColumns() if "schema" not in given_flags else read_declarations(Path(given_flags["schema"]))
    declared = declared.merged_with(
        DeclaredColumns(
            parse_bounds(given_flags.get("bounds", "")), parse_categories(given_flags.get("categories", ""))
        )
    )
    # The remaining flags are taken as they are, or split at their separators.
    other_fields: dict[str, Any] = {
        name: given_flags[name]
        for name in ("target", "text", "test", "held_out", "delimiter", "channels")
        if name in given_flags
    }
    if "classes" in given_flags:
        other_fields["classes"] = tuple(one.strip() for one in given_flags["classes"].split("|"))
    if "drop" in given_flags:
        other_fields["drop"] = tuple(one.strip() for one in given_flags["drop"].split(","))
    if "size" in given_flags:
        other_fields["size"] = _parse_size(given_flags["size"])
    return OwnFile(path=given_flags["data"], bounds=declared.bounds, categories=declared.categories, **other_fields)


def _parse_size(given: str) -> tuple[int, int]:
    """Returns width and height from a text such as 32x32."""
    wide, _, tall = given.partition("x")
    if not (wide.isdigit() and tall.isdigit()):
        raise ValueError(f"size={given!r}: need width x height in pixels, as in 32x32")
    return int(wide), int(tall)
