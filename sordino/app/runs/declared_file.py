"""A user's own file or folder before it is read: what is declared about it, and the recipe a run on own data begins with.

    OwnFile("people.csv", target="income", bounds={"age": (0, 100)})              a table
    OwnFile("reviews.jsonl", target="stars", text="review")                       texts
    OwnFile("pictures", classes=("cat", "dog"))                                   a folder of images by class
    OwnFile("arrays.npz", target="y")                                             arrays

The recipe depends on the kind of data and on the model asked for. It is a starting point that is not tuned, and no number
in it is made of the records, not of how many there are either:

    a table         linear, mlp            arrays      mlp, linear, cnn          any: FILE.py:FUNCTION
    images          cnn, linear, mlp       texts       minilm-head, minilm-lora; words (linear on words, no download)

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
from sordino.app.data.own.declared_columns import Bounds, Dates, DeclaredColumns
from sordino.app.runs.given_data import GIVEN, GivenData, NamedInputs
from sordino.app.runs.own_code import names_own_code, with_absolute_path
from sordino.app.runs.recipe import BALANCED, Recipe

HELD_OUT_SHARE = 0.1
_CHANNELS = (1, 3)


@dataclass(frozen=True, kw_only=True)
class OwnFile:
    r"""A user's own data and what is declared about it, before it is read.

    Args:
        path: a table (CSV, TSV, JSONL, Parquet), arrays (npz), or a folder of images by class.
        target: the column, or the array, that is to be predicted.
        text: the column that holds texts.
        bounds: the public range of each column of numbers.
        categories: the public values of each column of words.
        classes: the public values of the target; without it they are read off the records, which the claim says.
        drop: columns that are left out.
        test: another file that the model is tested on; without it, `held_out` of the records.

    Examples:
        >>> import pathlib, tempfile
        >>> folder = pathlib.Path(tempfile.mkdtemp())
        >>> _ = (folder / "people.csv").write_text("age,buys\n31,yes\n48,no\n")
        >>> own = OwnFile(path=str(folder / "people.csv"), target="buys", bounds={"age": (18, 99)})
        >>> own.bounds["age"]
        (18.0, 99.0)

    """

    path: str
    target: str | None = None
    text: str | None = None
    bounds: Mapping[str, Bounds] = field(default_factory=dict)
    categories: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    dates: Mapping[str, Dates] = field(default_factory=dict)
    """The first and last day of columns of dates."""
    hashed: Mapping[str, int] = field(default_factory=dict)
    """Into how many places the names of a column are hashed."""
    missing: tuple[str, ...] = ()
    """Columns with bounds or dates in which cells may be missing."""
    ignore_label: str | None = None
    """Records with this target are left out."""
    read_off_records: bool = False
    """Whether the declarations were made by looking at the records, which the claim then says."""
    classes: tuple[str, ...] | None = None
    drop: tuple[str, ...] = ()
    test: str | None = None
    held_out: float = HELD_OUT_SHARE
    delimiter: str | None = None
    size: tuple[int, int] | None = None
    channels: int | None = None

    def __post_init__(self) -> None:
        """Checks and normalises the fields; raises if a path does not exist."""
        # Declarations are checked once, in their own record, and kept as it normalised them.
        declared = self.declared
        for name in ("bounds", "categories", "dates", "hashed", "missing"):
            object.__setattr__(self, name, getattr(declared, name))
        for name in ("classes", "drop", "size"):
            given = getattr(self, name)
            object.__setattr__(self, name, None if given is None else tuple(given))
        # Ranges and kinds are checked here, so that every way to declare data is checked alike.
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
        """What was declared of its columns."""
        return DeclaredColumns(self.bounds, self.categories, self.dates, self.hashed, tuple(self.missing))

    @property
    def is_image_folder(self) -> bool:
        """Whether it is a folder of images."""
        return Path(self.path).is_dir()

    @property
    def is_array_file(self) -> bool:
        """Whether it is an .npz file."""
        return Path(self.path).suffix.lower() == ".npz"

    def table(self) -> dict[str, Any]:
        """Returns the fields of a user's own file that are set, as TOML and JSON can hold them, with absolute paths."""
        # Fields at their defaults are left out, so that a config.toml says what was declared.
        given_fields = {
            one.name: getattr(self, one.name)
            for one in fields(self)
            if getattr(self, one.name) not in (None, (), {}, False)
        }
        listed = {name: _tuples_to_lists(value) for name, value in given_fields.items()}
        return listed | {name: str(Path(listed[name]).absolute()) for name in ("path", "test") if name in listed}


def own_file_from_table(table: Mapping[str, Any]) -> OwnFile:
    """Creates the `OwnFile` of a user's own data from the table [data] of a run's config.toml."""
    # A misspelt declaration would leave a column undeclared, so unknown names are refused.
    known = [one.name for one in fields(OwnFile)]
    unknown = [name for name in table if name not in known]
    if unknown or "path" not in table:
        raise ValueError(
            f"[data] has {', '.join(table) or 'nothing'}: need path, and of the others {', '.join(known[1:])}"
        )
    return OwnFile(**dict(table))


def _tuples_to_lists(value: Any) -> Any:
    """Returns a field of a user's own file with tuples turned into lists, as TOML gives them back."""
    if isinstance(value, Mapping):
        return {key: _tuples_to_lists(one) for key, one in value.items()}
    return [_tuples_to_lists(one) for one in value] if isinstance(value, tuple) else value


RANGES = 20.0
"""Noise multiplier of the bounds that are found privately: by itself ε = 0.2 at δ = 1e-5."""
_UNTUNED = "not tuned to these records: the fields are those that do well on public data of the kind, or were given"

_TEXT_MODELS: Mapping[str, Mapping[str, Any]] = {
    "minilm-head": {"features": "minilm", "model": "linear"},
    "minilm-lora": {"features": "tokens", "model": "minilm-lora", "rate": 0.1, "steps": 60, "ema": 0.0,
                    "learning_rate": 0.002},
    "words": {"features": "words", "model": "linear"},
}  # fmt: skip
"""Models of texts: what they are of other fields."""


COMMON_FIELDS: Mapping[str, Any] = {
    "features": "none",
    "model": "linear",
    "rate": 1 / 32,
    "steps": 1280,
    "bound": 1.0,
    "delta": 1e-5,
    "optimizer": "adam",
    "learning_rate": 0.02,
    "schedule": "linear",
    "ema": 0.95,
    "tuned": _UNTUNED,
}


_BY_UNIT: Mapping[str, Any] = {"rate": 0.2, "steps": 200}
"""There are fewer units than records, and each says more in a lot."""


def recipe_for_own_data(own: OwnFile | GivenData, changes: Mapping[str, Any]) -> Recipe:
    """Returns the recipe that a run on a user's own file, or on data in memory, begins with, with the given fields in
    place of its own.
    """
    if isinstance(own, GivenData) and changes.get("unit") is not None:
        raise ValueError(
            f"unit={changes['unit']!r}: records in memory are drawn by record here; sordino.Private.draws takes units"
        )
    # What is given wins over what the kind of data suggests.
    recipe_fields = (
        _fields_for_given_data(own, changes) if isinstance(own, GivenData) else _fields_for_file(own, changes)
    )
    if recipe_fields.get("class_weights") == BALANCED:
        recipe_fields.setdefault("histogram", RANGES)
    if recipe_fields.get("epsilon") is None and recipe_fields.get("noise_multiplier") is None:
        raise ValueError("own data without epsilon: how much may be told of one record? 1 is strong, 8 is weak")
    return Recipe(**recipe_fields)


def _fields_for_given_data(own: GivenData, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the recipe's fields where no file but a model and records in memory are given as own data."""
    # The model that was given takes the records as they are.
    if "model" in changes or "features" in changes:
        raise ValueError("model or features beside a model of your own: leave them out")
    model = own.model.model if isinstance(own.model, NamedInputs) else own.model
    kind = {"name": "own", "dataset": GIVEN, "model": type(model).__name__, "learning_rate": 0.005}
    # The kind of targets decides the loss: numbers, the tokens of a text, or a class.
    targets = own.train[1]
    loss = "squared" if targets.is_floating_point() else "tokens" if targets.dim() > 1 else "cross-entropy"
    return {**COMMON_FIELDS, **kind, "loss": loss, **changes}


def _fields_for_file(own: OwnFile, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the recipe's fields for a user's own file or folder, chosen by the kind of data and the model
    asked for.
    """
    given, path = dict(changes), Path(own.path)
    kind: dict[str, Any] = {"name": path.stem or "own", "dataset": path.name, "ranges": RANGES}
    # The kind of data decides the model, unless one was asked for.
    if own.is_image_folder or own.is_array_file:
        kind |= {"model": "cnn" if own.is_image_folder else "mlp", "learning_rate": 0.005}
    elif own.text is not None:
        kind |= {"model": "minilm-head", "rate": 0.1, "steps": 200, "learning_rate": 0.01, "ema": 0.9}
    # Models of texts bring their own features; other models get sentence vectors of a frozen encoder.
    model = str(given.get("model", kind.get("model", COMMON_FIELDS["model"])))
    if own.text is not None and model in _TEXT_MODELS:
        given.pop("model", None)
        kind |= _TEXT_MODELS[model]
    elif own.text is not None:
        if model not in ("linear", "mlp") and not names_own_code(model):
            raise ValueError(f"model={model!r}: for texts there is {', '.join(_TEXT_MODELS)}, mlp, or FILE.py:FUNCTION")
        kind |= {"features": "minilm"}
    elif model in _TEXT_MODELS:
        raise ValueError(f"model={model!r}: is of texts; say which column holds them, as in --text review")
    # Private bounds are found by record, so they are left out where the privacy unit is larger.
    if given.get("unit") is not None:
        kind |= {"ranges": None, **_BY_UNIT}
    if names_own_code(model):
        given["model"] = with_absolute_path("model", model)
    if model == "mlp":
        kind |= {"learning_rate": 0.005}
    return {**COMMON_FIELDS, **kind, **given}
