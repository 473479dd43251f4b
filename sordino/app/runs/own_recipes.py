"""Recipes for a user's own data, by kind of data and model: starting points that are not tuned.

    a table         linear, mlp            arrays      mlp, linear, cnn          any: FILE.py:FUNCTION
    images          cnn, linear, mlp       texts       minilm-head, minilm-lora; words (linear on words, no download)

No number here is made of the records, not of how many there are either.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sordino.app.runs import own_model
from sordino.app.runs.own_data import GIVEN, GivenData
from sordino.app.runs.own_file import OwnFile
from sordino.app.runs.recipe import Recipe

RANGES = 20.0
"""Noise multiplier of the bounds that are found privately: by itself ε = 0.2 at δ = 1e-5."""
_UNTUNED = "not tuned to these records: the fields are those that do well on public data of the kind, or were given"

_TEXTS: Mapping[str, Mapping[str, Any]] = {
    "minilm-head": {"features": "minilm", "model": "linear"},
    "minilm-lora": {"features": "tokens", "model": "minilm-lora", "rate": 0.1, "steps": 60, "ema": 0.0,
                    "learning_rate": 0.002},
    "words": {"features": "words", "model": "linear"},
}  # fmt: skip
"""Models of texts: what they are of other fields."""


_COMMON_FIELDS: Mapping[str, Any] = {
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
    """Returns the recipe that a run on own data begins with, with the given fields in place of its own."""
    if isinstance(own, GivenData) and changes.get("unit") is not None:
        raise ValueError(
            f"unit={changes['unit']!r}: records in memory are drawn by record here; sordino.Private.draws takes units"
        )
    recipe_fields = (
        _fields_for_given_data(own, changes) if isinstance(own, GivenData) else _fields_for_file(own, changes)
    )
    if recipe_fields.get("epsilon") is None and recipe_fields.get("noise_multiplier") is None:
        raise ValueError("own data without epsilon: how much may be told of one record? 1 is strong, 8 is weak")
    return Recipe(**recipe_fields)


def _fields_for_given_data(own: GivenData, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a recipe for a model and records in memory."""
    if "model" in changes or "features" in changes:
        raise ValueError("model or features beside a model of your own: leave them out")
    kind = {"name": "own", "dataset": GIVEN, "model": type(own.model).__name__, "learning_rate": 0.005}
    numbers = {"loss": "squared"} if own.train[1].is_floating_point() else {}
    return {**_COMMON_FIELDS, **kind, **numbers, **changes}


def _fields_for_file(own: OwnFile, changes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a recipe for a file or a folder, chosen by the kind of data and the model asked for."""
    given, path = dict(changes), Path(own.path)
    kind: dict[str, Any] = {"name": path.stem or "own", "dataset": path.name, "ranges": RANGES}
    # The kind of data decides the model, unless one was asked for.
    if own.is_image_folder or own.is_array_file:
        kind |= {"model": "cnn" if own.is_image_folder else "mlp", "learning_rate": 0.005}
    elif own.text is not None:
        kind |= {"model": "minilm-head", "rate": 0.1, "steps": 200, "learning_rate": 0.01, "ema": 0.9}
    # Models of texts bring their own features; other models get sentence vectors of a frozen encoder.
    model = str(given.get("model", kind.get("model", _COMMON_FIELDS["model"])))
    if own.text is not None and model in _TEXTS:
        given.pop("model", None)
        kind |= _TEXTS[model]
    elif own.text is not None:
        if model not in ("linear", "mlp") and own_model.FILE_MARK not in model:
            raise ValueError(f"model={model!r}: for texts there is {', '.join(_TEXTS)}, mlp, or FILE.py:FUNCTION")
        kind |= {"features": "minilm"}
    elif model in _TEXTS:
        raise ValueError(f"model={model!r}: is of texts; say which column holds them, as in --text review")
    # Private bounds are found by record, so they are left out where the privacy unit is larger.
    if given.get("unit") is not None:
        kind |= {"ranges": None, **_BY_UNIT}
    if own_model.FILE_MARK in model:
        given["model"] = own_model.with_absolute_path(model)
    if model == "mlp":
        kind |= {"learning_rate": 0.005}
    return {**_COMMON_FIELDS, **kind, **given}
