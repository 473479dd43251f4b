"""The flags that commands share which read data: the fields of a recipe, the options of a run, and own data."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import MISSING, dataclass, fields, make_dataclass, replace
from pathlib import Path
from typing import Any

from sordino.app.cli.flags import Flag, flags_of, was_given
from sordino.app.data.own.declared_columns import (
    DeclaredColumns,
    Schema,
    parse_bounds,
    parse_categories,
    parse_dates,
    parse_hashed,
    read_schema,
)
from sordino.app.runs.declared_file import COMMON_FIELDS, HELD_OUT_SHARE, RANGES, OwnFile
from sordino.app.runs.recipe import SETTING_RECORDS, Recipe
from sordino.app.runs.settings import Options


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
    dates: str | None = None
    """Public first and last days of columns of dates, as in joined=2015-01-01:2025-12-31."""
    hashed: str | None = None
    """Columns of many names, hashed into so many places, as in city=64."""
    missing: str | None = None
    """Columns with bounds or dates in which cells may be missing, with commas."""
    ignore_label: str | None = None
    """Leave out records with this target."""
    classes: str | None = None
    """The public classes of the target, as in 'yes|no'."""
    schema: str | None = None
    """A TOML file in place of these flags, as `sordino data inspect` proposes one."""
    drop: str | None = None
    """Columns to leave out, with commas."""
    test: str | None = None
    """Another such file or folder to test on; without it, a part of the data is held out."""
    held_out: float | None = None
    """The share that is held out for testing; each record by a hash of itself."""
    delimiter: str | None = None
    """Between the cells of a CSV file; read off its first line without it."""
    size: str | None = None
    """Make all images of this size, as in 32x32."""
    channels: int | None = None
    """Colours of images: 1 or 3; as in the first image if it is not said."""


RUN_GROUPS: Mapping[str, tuple[str, ...]] = {
    "Data of your own": (
        "data",
        "target",
        "text",
        "schema",
        "test",
        "held_out",
        "drop",
        "delimiter",
        "size",
        "channels",
    ),
    "What is known of its columns, which is then public": (
        *("bounds", "categories", "dates", "hashed", "missing", "classes", "ignore_label"),
    ),
    "Task and model": ("model", "widths", "features", "loss", "class_weights", "dataset", "records"),
    "Privacy": (
        *("epsilon", "delta", "noise_multiplier", "bound", "batch_size", "rate", "expected_batch", "unit"),
        *("unit_records", "strict"),
    ),
    "Budget": ("budget", "budget_stop"),
    "Optimisation, which costs no privacy": (
        *("epochs", "steps", "optimizer", "learning_rate", "momentum", "weight_decay", "schedule", "final_rate"),
        *("warm_up", "schedule_steps", "schedule_per", "ema"),
    ),
    "Variants of DP-SGD": ("method", "sampler", "weigher", "query", "noise", "backend", "penalty", "parameter"),
    "Released before the first step, within the same ε": ("ranges", "normalise", "pca", "components", "histogram"),
    "Images without a feature map": ("pixel_mean", "pixel_deviation"),
    "Comparison": ("baseline", "non_private", "seeds", "seed", "init_seed"),
    "Output": ("out", "report", "json", "evaluate_every", "trace", "diagnose", "show_private"),
    "Running": ("device", "checkpoint_every", "physical_batch", "isolate", "keep_key"),
    "Recipe": ("config", "without", "name", "tuned"),
}
"""The groups in which the help of `sordino train` and `sordino tune` shows their options."""

RUN_VALUES: Mapping[str, str] = {
    **dict.fromkeys(("data", "test", "schema", "config", "budget"), "FILE"),
    **dict.fromkeys(("target", "text", "unit"), "COLUMN"),
    **dict.fromkeys(("drop", "missing"), "COLUMN,…"),
    **dict.fromkeys(("sampler", "weigher", "query", "noise", "backend", "method", "features"), "NAME"),
    **dict.fromkeys(("model", "loss", "optimizer", "schedule", "dataset", "name"), "NAME"),
    "bounds": "COLUMN=LOW:HIGH,…",
    "categories": "COLUMN=A|B;…",
    "dates": "COLUMN=DAY:DAY,…",
    "hashed": "COLUMN=COUNT,…",
    "classes": "A|B|…",
    "out": "FOLDER",
    "size": "WxH",
    "parameter": "NAME=NUMBER …",
    "without": "FIELD …",
}
"""What is typed after these options."""

RUN_NOTE = (
    "An option that is left out has the value of the recipe that is named. The value in [brackets] is the one that is used "
    "with --data; images, texts and other models than linear begin with values of their own."
)


def describe_defaults() -> dict[str, str]:
    """Returns the defaults of a run's flags as the help shows them: the values that `sordino train --data` uses where a
    flag is left out.
    """
    defaults = {
        one.name: one.default
        for record in (*SETTING_RECORDS, Options)
        for one in fields(record)
        if one.default is not MISSING
    }
    defaults |= {name: value for name, value in COMMON_FIELDS.items() if name != "tuned"}
    return {
        name: f"{value:g}" if isinstance(value, float) else str(value)
        for name, value in defaults.items()
        if value is not None and not isinstance(value, bool)
    } | {"epsilon": "must be given", "held_out": f"{HELD_OUT_SHARE:g}", "ranges": f"{RANGES:g}"}


def recipe_flags() -> Iterator[Flag]:
    """Yields one of a run's flags for every field of a recipe that can be set, record by record, for `sordino train`
    and `sordino tune`.
    """
    yield from flags_of(Recipe, ("task", "preparation", "privacy", "optimisation", "measured"))
    for record in SETTING_RECORDS:
        yield from flags_of(record)


def make_run_command(base: type[Any], about: str, leave_out: tuple[str, ...] = ()) -> type[Any]:
    """Returns a command with the flags of its own class, of own data, of a recipe and of a run.

    Args:
        base: a dataclass with the flags of the command itself, and what it does.
        about: the first sentence of its help.
        leave_out: options of a run that the command does not take, or takes in its own sense.

    """
    flags = [*flags_of(OwnFlags), *recipe_flags(), *flags_of(Options, leave_out)]
    command = make_dataclass("Command", flags, bases=(base,), frozen=True)
    command.__doc__ = about
    return command


def read_run_flags(command: Any, base: type[Any]) -> tuple[dict[str, Any], OwnFile | None]:
    """Returns the fields of a recipe and of a run that were typed for a command, and the user's own data if there is any.

    `base` is the class with the flags of the command itself, which are neither.
    """
    own_names, data_names = ({one.name for one in fields(table)} for table in (base, OwnFlags))
    typed = {one.name: getattr(command, one.name) for one in fields(command) if was_given(command, one.name)}
    given = {name: value for name, value in typed.items() if name not in own_names and name not in data_names}
    return given, own_file_from_flags({name: value for name, value in typed.items() if name in data_names})


def own_file_from_flags(flags: Mapping[str, Any]) -> OwnFile | None:
    """Creates an `OwnFile` from a run's flags, which `sordino train` and `sordino tune` share; returns None without
    --data.
    """
    given_flags = {name: value for name, value in flags.items() if value is not None}
    # A declaration without a file would be ignored in silence.
    if "data" not in given_flags:
        if given_flags:
            raise ValueError(f"--{next(iter(given_flags)).replace('_', '-')} without --data: which file is it about?")
        return None
    # Flags win over the schema file.
    schema = Schema() if "schema" not in given_flags else read_schema(Path(given_flags["schema"]))
    # A column may be declared in the schema and be named as missing by a flag, so both are joined at the end.
    missing = tuple(one.strip() for one in given_flags["missing"].split(",")) if "missing" in given_flags else ()
    bounds, dates = parse_bounds(given_flags.get("bounds", "")), parse_dates(given_flags.get("dates", ""))
    flagged: dict[str, Any] = {
        "bounds": bounds,
        "categories": parse_categories(given_flags.get("categories", "")),
        "dates": dates,
        "hashed": parse_hashed(given_flags.get("hashed", "")),
        "missing": tuple(name for name in missing if name in bounds or name in dates),
    }
    declared = schema.columns.merged_with(DeclaredColumns(**flagged))
    declared = replace(declared, missing=tuple(dict.fromkeys((*declared.missing, *missing))))
    # The remaining flags are taken as they are, or split at their separators.
    other_fields: dict[str, Any] = {
        name: getattr(schema, name)
        for name in ("target", "classes", "drop", "ignore_label", "read_off_records")
        if getattr(schema, name) not in (None, (), False)
    }
    other_fields |= {
        name: given_flags[name]
        for name in ("target", "text", "test", "held_out", "delimiter", "channels", "ignore_label")
        if name in given_flags
    }
    # Names of classes may hold commas, so bars stand between them.
    if "classes" in given_flags:
        other_fields["classes"] = tuple(one.strip() for one in given_flags["classes"].split("|"))
    if "drop" in given_flags:
        other_fields["drop"] = tuple(one.strip() for one in given_flags["drop"].split(","))
    if "size" in given_flags:
        other_fields["size"] = _parse_size(given_flags["size"])
    return OwnFile(path=given_flags["data"], **vars(declared), **other_fields)


def _parse_size(given: str) -> tuple[int, int]:
    """Returns width and height from a run's flag for the size of images, such as 32x32."""
    # Width first, as image programs write it.
    wide, _, tall = given.partition("x")
    if not (wide.isdigit() and tall.isdigit()):
        raise ValueError(f"size={given!r}: need width x height in pixels, as in 32x32")
    return int(wide), int(tall)
