"""Describes a user's own data before it is read: its path, and what is declared about it.

    OwnFile("people.csv", target="income", bounds={"age": (0, 100)})              a table
    OwnFile("reviews.jsonl", target="stars", text="review")                       texts
    OwnFile("pictures", classes=("cat", "dog"))                                   a folder of images by class
    OwnFile("arrays.npz", target="y")                                             arrays

**Privacy:** what is declared is public. What is not, and has to be read off the records without noise, is named in the
claim.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from sordino import validate
from sordino.app.data.own.bad_file import BadFile
from sordino.app.data.own.declared_columns import (
    Bounds,
    DeclaredColumns,
    parse_bounds,
    parse_categories,
    read_declarations,
)

HELD_OUT_SHARE = 0.1
_CHANNELS = (1, 3)


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


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    """A user's own data and what is declared about it, before it is read."""

    path: str
    target: str | None = None
    text: str | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    classes: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    test: str | None = None
    held_out: float = HELD_OUT_SHARE
    delimiter: str | None = None
    size: tuple[int, int] | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        """Checks and normalises the fields; raises if a path does not exist."""
        declared = DeclaredColumns(self.bounds, self.categories)
        object.__setattr__(self, "bounds", declared.bounds)
        object.__setattr__(self, "categories", declared.categories)
        for name in ("classes", "drop", "size"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else tuple(given))
        validate.fraction("held_out", self.held_out)
        if self.classes is not None and len(set(self.classes)) < max(2, len(self.classes)):
            raise ValueError(f"classes={'|'.join(self.classes)!r}: need two or more, each once")
        if self.channels is not None and self.channels not in _CHANNELS:
            raise ValueError(f"channels={self.channels}: need 1, grey, or 3, colours")
        for side in self.size or ():
            validate.count("size", side)
        for place in filter(None, (self.path, self.test)):
            if not Path(place).exists():
                raise BadFile(Path(place), "is not there", "give the path of a file or a folder")

    @property
    def declared(self) -> DeclaredColumns:
        """The bounds and categories that were declared for its columns."""
        return DeclaredColumns(self.bounds, self.categories)

    @property
    def is_image_folder(self) -> bool:
        """Whether it is a folder of images."""
        return Path(self.path).is_dir()

    @property
    def is_array_file(self) -> bool:
        """Whether it is an .npz file."""
        return Path(self.path).suffix.lower() == ".npz"

    def table(self) -> dict[str, Any]:
        """Returns the fields that are set, as TOML and JSON can hold them, with absolute paths."""
        given_fields = {
            one.name: getattr(self, one.name) for one in fields(self) if getattr(self, one.name) not in (None, (), {})
        }
        listed = {name: _tuples_to_lists(value) for name, value in given_fields.items()}
        return listed | {name: str(Path(listed[name]).absolute()) for name in ("path", "test") if name in listed}


def own_file_from_table(table: Mapping[str, Any]) -> OwnFile:
    """Creates an `OwnFile` from the table [data] of a run's config.toml."""
    known = [one.name for one in fields(OwnFile)]
    unknown = [name for name in table if name not in known]
    if unknown or "path" not in table:
        raise ValueError(
            f"[data] has {', '.join(table) or 'nothing'}: need path, and of the others {', '.join(known[1:])}"
        )
    return OwnFile(**dict(table))


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


def _tuples_to_lists(value: Any) -> Any:
    """Returns a value with tuples turned into lists, as TOML gives them back."""
    if isinstance(value, Mapping):
        return {key: _tuples_to_lists(one) for key, one in value.items()}
    return [_tuples_to_lists(one) for one in value] if isinstance(value, tuple) else value
