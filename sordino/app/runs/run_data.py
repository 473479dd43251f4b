"""The data of a run: a known data set after its feature map, a generated one, or the user's own.

`digits` and `spiral` are generated: for tests, for a first look, for a machine without a network. So are `line`, y = 10 x +
noise, and `plane`, y = 10 x₁ + 5 x₂ + noise, for regression, and `cloud`, points around 0, for landscapes. `adult` is a
table, `r8` and `20news` are texts, which a frozen encoder turns into vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import TypeVar

import torch
from torch.utils.data import TensorDataset

from sordino.app import data as known
from sordino.app.data import NotFetched
from sordino.app.data.adult import load_adult
from sordino.app.data.risk_tables import COMPAS, GERMAN
from sordino.app.data.risk_tables import load_risk_table as risks
from sordino.app.runs.encoded_records import Prepared, prepare
from sordino.app.runs.features import OF_TEXTS, encode_by_speaker, encode_texts
from sordino.app.runs.own_file import GivenData, OwnFile
from sordino.app.runs.own_records import load_given_data, load_own_file
from sordino.app.runs.recipe import Recipe

Say = Callable[[str], None]
T = TypeVar("T")

_TEXTS = ("r8", "20news")
_UNITS = {"friends": "speaker"}
"""Data sets whose records have an owner."""

_SPIRAL_ARMS = 3
_SPIRAL_TRAIN, _SPIRAL_TEST = 4000, 2000


def load_run_data(recipe: Recipe, limit: int | None, say: Say, own: OwnFile | GivenData | None = None) -> Prepared:
    """Returns the data of a run, the recipe's or the user's own, with at most `limit` training records."""
    if own is None:
        return _load_known_data(recipe, say).first_records(limit)
    # The user's own data brings what the claim must name.
    own_data = load_given_data(own) if isinstance(own, GivenData) else load_own_file(own, recipe, say)
    return own_data.first_records(limit)


def _load_known_data(recipe: Recipe, say: Say) -> Prepared:
    """Returns the data of a run on one of the data sets that sordino knows, and refuses features that do not fit it."""
    name, features = recipe.dataset, recipe.features
    if recipe.unit is not None and recipe.unit != _UNITS.get(name):
        known_units = ", ".join(f"{unit} of {name}" for name, unit in _UNITS.items())
        raise ValueError(f"dataset={name!r} with unit={recipe.unit!r}: there is {known_units}")
    # The lines of Friends have speakers, which are privacy units if the recipe asks for units.
    if name == "friends":
        if features != "minilm":
            raise ValueError(f"features={features!r}: the lines of friends are texts; need 'minilm'")
        train, test, outputs, speakers = _load_or_explain(name, lambda: encode_by_speaker(say))
        units = None if recipe.unit is None else speakers
        return Prepared(train, test, outputs, units, before_features=(*train.tensors, speakers))
    # Vectors are used as they are.
    if name in _VECTORS:
        if features != "none":
            raise ValueError(f"features={features!r}: the {name}'s points are no images; need 'none'")
        train, test, outputs = _load_or_explain(name, _VECTORS[name])
        return Prepared(train, test, outputs, generated=name in _GENERATED)
    # Texts need an encoder, and an encoder needs texts.
    if name in _TEXTS or features in OF_TEXTS:
        if name not in _TEXTS or features not in OF_TEXTS:
            raise ValueError(
                f"dataset={name!r} with features={features!r}: texts ({', '.join(_TEXTS)}) need "
                f"{' or '.join(OF_TEXTS)}, and nothing else has it"
            )
        return Prepared(*_load_or_explain(name, lambda: encode_texts(name, features, say)))
    # Images go through the recipe's feature map.
    images = known.digits() if name == "digits" else _load_or_explain(name, lambda: known.load(name))
    return prepare(recipe, images, say)


def _load_or_explain(name: str, get: Callable[[], T]) -> T:
    """Returns the data of a run, or explains to a user who cannot download it what to do."""
    try:
        return get()
    except NotFetched as error:
        # The sources' answers are long; the first line says what is missing.
        first, *_ = str(error).splitlines()
        raise ValueError(
            f"{first.rstrip(':')}; put its files into a folder and set SORDINO_DATA to it, or try generated data with "
            f"`sordino train digits`; `sordino data fetch {name}` says what each source answered"
        ) from error


def _load_spirals() -> tuple[TensorDataset, TensorDataset, int]:
    return spiral(_SPIRAL_TRAIN), spiral(_SPIRAL_TEST, seed=1), _SPIRAL_ARMS


_VECTORS: Mapping[str, Callable[[], tuple[TensorDataset, TensorDataset, int]]] = {
    "spiral": _load_spirals,
    "line": lambda: (known.linear([10.0]), known.linear([10.0], seed=1), 1),
    "plane": lambda: (known.linear([10.0, 5.0]), known.linear([10.0, 5.0], seed=1), 1),
    "adult": load_adult,
    "compas": lambda: risks(COMPAS),
    "german": lambda: risks(GERMAN),
    "cloud": lambda: (known.cloud(), known.cloud(seed=1), 2),
}
"""Training and test records that are no images, and how many numbers a model of them says."""
_GENERATED = ("spiral", "line", "plane", "cloud")


def spiral(n: int, *, classes: int = _SPIRAL_ARMS, seed: int = 0) -> TensorDataset:
    """Returns points on the arms of a spiral, with some noise, as generated data of a run."""
    # Points are spread evenly over the disc, each arm turned by its class.
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(classes, (n,), generator=generator)
    radius = torch.rand(n, generator=generator).sqrt()
    angle = 2 * math.pi * (label / classes + 0.6 * radius) + 0.15 * torch.randn(n, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1) * 2, label)
