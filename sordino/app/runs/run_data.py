"""Reads the data of a run: a known data set after its feature map, a generated one, or the user's own.

`digits` and `spiral` are generated: for tests, for a first look, for a machine without a network. So are `line`, y = 10 x +
noise, and `plane`, y = 10 x₁ + 5 x₂ + noise, for regression, and `cloud`, points around 0, for landscapes. `adult` is a
table, `r8` and `20news` are texts, which a frozen encoder turns into vectors.

The user's own records become numbers, their targets classes or numbers, and a part of them is held out for testing
(declared_file.py says what can be declared about them).

**Privacy:** the numbers of a record are made of that record alone, by what was declared; it is held out by a hash of
itself, and left out by its own label. Whatever was read off the records besides is in `not_covered`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.app import data as known
from sordino.app.data import NotFetched
from sordino.app.data.adult import load_adult
from sordino.app.data.own import arrays, image_folder, rows
from sordino.app.data.own.bad_file import BadFile, raise_faults, write_flag
from sordino.app.data.own.columns import (
    MOST_CATEGORIES,
    Column,
    category_numbers,
    choose_scheme,
    declared_column,
    encode_column,
    parse_number,
)
from sordino.app.data.own.declared_columns import DeclaredColumns
from sordino.app.data.own.held_out import choose_held_out
from sordino.app.data.own.rows import TableRows
from sordino.app.data.risk_tables import COMPAS, GERMAN
from sordino.app.data.risk_tables import load_risk_table as risks
from sordino.app.runs.declared_file import HELD_OUT_SHARE, OwnFile
from sordino.app.runs.encoded_records import Prepared, RecordEncoder, prepare, scale_to_unit
from sordino.app.runs.features import OF_TEXTS, encode_by_speaker, encode_texts
from sordino.app.runs.given_data import GivenData
from sordino.app.runs.problem import LOSSES
from sordino.app.runs.recipe import Recipe
from sordino.app.runs.run_device import device_of
from sordino.refusal import Refusal

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
    """Returns points on the arms of a spiral, with some noise: the data of a run on a generated data set."""
    # Points are spread evenly over the disc, each arm turned by its class.
    generator = torch.Generator().manual_seed(seed)
    label = torch.randint(classes, (n,), generator=generator)
    radius = torch.rand(n, generator=generator).sqrt()
    angle = 2 * math.pi * (label / classes + 0.6 * radius) + 0.15 * torch.randn(n, generator=generator)
    return TensorDataset(torch.stack([radius * angle.cos(), radius * angle.sin()], dim=1) * 2, label)


HELD_OUT = "accuracy and loss on the records held out for testing, told without noise"
TESTED = "accuracy and loss on the test records, told without noise"
_CLASSES = "which classes there are, read off the data; give classes"
_IMAGES = "size and colours of the images, read off the first one; give size and channels"
_SCHEMA = "the schema, read off the data by `sordino data inspect`; replace it by what is known of the columns"
_PIXELS = 255.0
IGNORED_TOKEN = -100
"""The target of a token that does not count, as in transformers."""


@dataclass(frozen=True, eq=False)
class RecordsFromFile:
    """The records (N, …) and targets of one file, with the bytes by which each record is identified."""

    x: Tensor
    y: Tensor
    keys: list[bytes]
    units: Tensor | None = None
    """Whose each record is, where lots are drawn by unit."""


def load_own_file(own: OwnFile, recipe: Recipe, say: Say) -> Prepared:
    """Reads the data of a run from the user's own file or folder, encoded and split into training and test records.

    The recipe's `unit` is the column that says whose a record is. It is not learnt from, and all records of a unit are
    identified by it alone.
    """
    # An unknown loss is refused later, with its own message; until then targets are read as classes.
    classifies = recipe.loss not in LOSSES or LOSSES[recipe.loss].classifies
    unit = recipe.unit
    # Images and arrays have readers of their own.
    if unit is not None and (own.is_image_folder or own.is_array_file):
        raise ValueError(
            f"unit={unit!r}: tables and texts have a column that says whose a record is; Private.draws takes ids"
        )
    if own.is_image_folder:
        return _read_images(own, classifies)
    if own.is_array_file:
        return _read_array_file(own, classifies)
    # A table needs to be told what is learnt, and a unit must be neither that nor learnt from.
    if own.target is None:
        raise ValueError("own data without --target: which column is to be learnt?")
    if unit is not None and unit in (own.target, own.text):
        raise ValueError(
            f"unit={unit!r}: is what is learnt, or learnt from; need the column that says whose a record is"
        )
    return _read_tables(own, own.target, recipe.features, classifies, say, unit)


def _split_for_testing(
    own: OwnFile,
    records: RecordsFromFile,
    test: RecordsFromFile | None,
    encoder: RecordEncoder,
    read_off: tuple[str, ...],
) -> Prepared:
    """Returns the data of a run, read from a user's file, as training and test records: those of the test file, or a
    part that is held out.

    `read_off` says in words what had to be read off the records to encode them, which the claim then names.
    """
    train_pair, units = (records.x, records.y), records.units
    # Without a test file, records are held out by a hash of themselves, so one record never moves another.
    if test is None:
        is_held_out, test_disclosure = mark_held_out(records.keys, own.held_out), HELD_OUT
        train_pair, test_pair = _split(train_pair, is_held_out)
        units = None if units is None else units[~is_held_out]
    else:
        test_pair, test_disclosure = (test.x, test.y), TESTED
    # Whatever was read off the records is named in the claim, the schema included.
    schema = (_SCHEMA,) if own.read_off_records else ()
    return Prepared(
        TensorDataset(*train_pair),
        TensorDataset(*test_pair),
        encoder.outputs,
        units,
        before_features=None if units is None else (*train_pair, units),
        not_covered=(*read_off, *schema, test_disclosure),
        own_encoder=encoder,
    )


def load_given_data(given: GivenData) -> Prepared:
    """Returns the data of a run whose records and model were given in memory, split into training and test records."""
    train_pair = given.train
    if given.test is None:
        # A record is recognised by its bytes, so it is held out or not whatever the others are.
        keys = [x.numpy().tobytes() + y.numpy().tobytes() for x, y in zip(*train_pair, strict=True)]
        train_pair, test_pair = _split(train_pair, mark_held_out(keys, HELD_OUT_SHARE))
    else:
        test_pair = given.test
    # Labels are checked against the number of outputs here, because an index beyond it would fail in the middle of
    # training.
    is_of_tokens = not train_pair[1].is_floating_point() and train_pair[1].dim() > 1
    outputs = _count_outputs(given.model, train_pair[0], is_of_tokens=is_of_tokens)
    for _, y in (train_pair, test_pair, *(() if given.validation is None else (given.validation,))):
        is_ignored = (y == IGNORED_TOKEN) if is_of_tokens else torch.zeros((), dtype=torch.bool)
        if not y.is_floating_point() and bool((((y < 0) | (y >= outputs)) & ~is_ignored).any()):
            raise Refusal(
                f"a label beyond the model's {outputs} outputs: need 0 to {outputs - 1}; mend labels or model"
            )
    return Prepared(
        TensorDataset(*train_pair),
        TensorDataset(*test_pair),
        outputs,
        network=given.model,
        not_covered=(HELD_OUT if given.test is None else TESTED,),
        validation=None if given.validation is None else TensorDataset(*given.validation),
        patience=given.patience,
    )


def _split(pair: tuple[Tensor, Tensor], is_held_out: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Returns the user's own records and targets in two parts: those to train on, and those held out."""
    x, y = pair
    return (x[~is_held_out], y[~is_held_out]), (x[is_held_out], y[is_held_out])


def _read_tables(own: OwnFile, target: str, features: str, classifies: bool, say: Say, unit: str | None) -> Prepared:
    """Reads the data of a run from a user's table or texts, and the test file if there is one, and chooses the encoder
    of both.
    """
    # Both files lose their ignored records before anything is chosen by them.
    table = _leave_out_ignored(rows.read_table(Path(own.path), own.delimiter), own, target)
    test = None if own.test is None else _leave_out_ignored(rows.read_table(Path(own.test), own.delimiter), own, target)
    # The target's classes or bounds come from what was declared; whatever is read off the records is listed.
    target_column, read_off_target = _choose_target(table, own, target, classifies)
    read_off = read_off_target
    columns: tuple[Column, ...] = ()
    if own.text is not None:
        table.column(own.text, "--text")
    else:
        scheme = choose_scheme(table, own.declared, (target, *own.drop, *(() if unit is None else (unit,))))
        if unit is not None and scheme.unbounded:
            raise BadFile(
                table.path,
                f"columns of numbers without bounds, by {unit}: {', '.join(scheme.titles[: scheme.unbounded])}",
                f"give them, because they are found by record, not by {unit}: "
                f"{write_flag('--bounds', f'{scheme.titles[0]}=low:high')}",
            )
        read_off, columns = (*scheme.read_off, *read_off_target), scheme.columns
    encoder = RecordEncoder(
        "table" if own.text is None else "text",
        (),
        1 if target_column.categories is None else len(target_column.categories),
        sum(one.is_unbounded for one in columns),
        target_column.categories or (),
        columns,
        own.text,
        features if own.text is not None else "none",
        None,
        target,
        target_column.bounds,
    )
    # The shape of a record is known when the first ones are encoded.
    train_records = _encode_table(table, encoder, target_column, say, unit)
    encoder = encoder.with_shape(train_records.x.shape[1:])
    test_records = None if test is None else _encode_table(test, encoder, target_column, say, unit)
    return _split_for_testing(own, train_records, test_records, encoder, read_off)


def _encode_table(
    table: TableRows, encoder: RecordEncoder, target_column: Column, say: Say, unit: str | None
) -> RecordsFromFile:
    """Returns one table that was read for a run's data as encoded records; raises with all faults of the file at once."""
    # All records of a unit have one key, so a unit is held out as a whole.
    whose = None if unit is None else table.column(unit, "--unit")
    keys = [name.encode() for name in whose] if whose else ["\x1f".join(row).encode() for row in table.cells]
    y = _encode_targets(table, target_column)
    if encoder.text is not None:  # a bad row of the target is told before texts are encoded, which takes long
        raise_faults(table.path, table.faults)
    x = encoder.encode_table(table, say)
    raise_faults(table.path, table.faults)
    return RecordsFromFile(x, y, keys, None if whose is None else number_names(whose))


def number_names(whose: Sequence[str]) -> Tensor:
    """Returns a number for each owner's name in the data of a run, counted in the order in which the names are met.

    >>> number_names(["ann", "bob", "ann"]).tolist()
    [0, 1, 0]
    """
    # Names are numbered as they come; the numbers say who is the same, and no more.
    numbers: dict[str, int] = {}
    return torch.tensor([numbers.setdefault(name, len(numbers)) for name in whose])


def _leave_out_ignored(table: TableRows, own: OwnFile, target: str) -> TableRows:
    """Returns the table of a run's data without the records whose target is the ignored label, each by its own label."""
    if own.ignore_label is None:
        return table
    # Each record stays or goes by its own label alone.
    kept = [at for at, cell in enumerate(table.column(target, "--target")) if cell != own.ignore_label]
    if not kept:
        raise BadFile(
            table.path, f"every record has the ignored label {own.ignore_label!r}", "need others to learn from"
        )
    return TableRows(
        table.path, table.columns, [table.cells[at] for at in kept], [table.lines[at] for at in kept], table.faults
    )


def _choose_target(found: TableRows, own: OwnFile, target: str, classifies: bool) -> tuple[Column, tuple[str, ...]]:
    """Returns the target column of the table that a run's data is read from, and what had to be read off the records to
    know it.
    """
    cells = found.column(target, "--target")
    # A numerical target needs declared bounds.
    if not classifies:
        if target not in own.bounds:
            raise BadFile(
                found.path,
                f"the target {target!r} is a number without bounds",
                f"give them: {write_flag('--bounds', f'{target}=low:high')}",
            )
        return Column(target, bounds=own.bounds[target]), ()
    # Declared classes are public and cost nothing.
    given = own.classes or own.categories.get(target)
    if given is not None:
        return declared_column(target, DeclaredColumns(categories={target: given})), ()
    # Without declared classes they are read off the data, which the claim then names.
    classes = tuple(sorted(set(cells)))
    if "" in classes:
        raise BadFile(
            found.path,
            f"the target {target!r} is empty",
            "mend the cell, or say --ignore-label '' to leave such records out",
            found.lines[cells.index("")],
        )
    if len(classes) > MOST_CATEGORIES:
        wanted = f"for a number say --loss squared {write_flag('--bounds', f'{target}=low:high')}"
        cure = wanted if parse_number(cells[0]) is not None else "choose another target, or give its classes"
        raise BadFile(found.path, f"the target {target!r} has more than {MOST_CATEGORIES} different values", cure)
    _refuse_single_class(found.path, target, classes)
    return Column(target, categories=classes), (_CLASSES,)


def _encode_targets(table: TableRows, target_column: Column) -> Tensor:
    """Returns the targets of a run's data from its table: scaled numbers, or the number of each record's class."""
    if target_column.categories is None:
        return torch.from_numpy(encode_column(table, target_column).astype(np.float32))
    return torch.from_numpy(category_numbers(table, target_column))


def _read_images(own: OwnFile, classifies: bool) -> Prepared:
    """Reads the data of a run from a user's folder of images by class, and the test folder if there is one."""
    if not classifies:
        raise ValueError("images have classes, the names of their folders: leave --loss out")
    # The folders are the classes, and every image gets one size and one number of channels.
    folder = image_folder.read_image_folder(Path(own.path), own.size, own.channels)
    _, channels, tall, wide = folder.images.shape
    classes = own.classes or tuple(sorted(set(folder.classes)))
    _refuse_single_class(folder.path, "the folders", classes)
    # Whatever was not declared had to be read off the data, and the claim names it.
    read_off = [] if own.classes else [_CLASSES]
    read_off += [] if own.size is not None and own.channels is not None else [_IMAGES]
    encoder = RecordEncoder("images", (channels, tall, wide), len(classes), classes=classes, bounds=(0.0, _PIXELS))

    def records_of(one: image_folder.ImageFolder) -> RecordsFromFile:
        """Returns one folder of images as records of a run's data, with pixels in [−1, 1]."""
        y = [_class_number(classes, name, Path(file)) for name, file in zip(one.classes, one.files, strict=True)]
        keys = [image.tobytes() + name.encode() for image, name in zip(one.images, one.classes, strict=True)]
        return RecordsFromFile(encoder.encode_array(one.images), torch.tensor(y), keys)

    test = None
    if own.test is not None:
        read = image_folder.read_image_folder(Path(own.test), own.size or (wide, tall), own.channels or channels)
        test = records_of(read)
    return _split_for_testing(own, records_of(folder), test, encoder, tuple(read_off))


def _read_array_file(own: OwnFile, classifies: bool) -> Prepared:
    """Reads the data of a run from a user's .npz file of records and targets, and from the test file if there is one."""
    # Records and targets are two arrays of one file.
    train_arrays = arrays.read_arrays(Path(own.path), own.target)
    target = own.target or arrays.TARGET
    read_off: list[str] = []
    classes: tuple[str, ...] | None = None
    # Find the classes, or require bounds for a numerical target.
    if classifies:
        if train_arrays.y.dtype.kind == "f":
            raise BadFile(
                train_arrays.path, f"{target!r} holds floating numbers", "say --loss squared, or save whole numbers"
            )
        classes = own.classes or tuple(str(one) for one in np.unique(train_arrays.y))
        read_off += [] if own.classes else [_CLASSES]
        _refuse_single_class(train_arrays.path, target, classes)
    elif target not in own.bounds:
        raise BadFile(
            train_arrays.path,
            f"the target {target!r} is a number without bounds",
            f"say {write_flag('--bounds', f'{target}=low:high')}",
        )
    # Bytes have known bounds; other records of more than two dimensions need declared ones.
    bounds = own.bounds.get(train_arrays.name, (0.0, _PIXELS) if train_arrays.x.dtype == np.uint8 else None)
    if bounds is None and train_arrays.x.ndim > 2:
        raise BadFile(
            train_arrays.path,
            f"the records of {train_arrays.name!r} have no bounds",
            f"say {write_flag('--bounds', f'{train_arrays.name}=low:high')}",
        )
    # Numbers without bounds come first in the encoder, because a private release finds their bounds.
    shape = train_arrays.x.shape[1:]
    encoder = RecordEncoder(
        "arrays",
        (1, *shape) if len(shape) == 2 else shape,  # pictures without colours get one channel
        len(classes or (1,)),
        shape[0] if bounds is None else 0,
        classes or (),
        bounds=bounds,
        target=own.target,
        target_bounds=None if classes is not None else own.bounds[target],
    )

    def records_of(one: arrays.Arrays) -> RecordsFromFile:
        """Returns one .npz file as records of a run's data, scaled by the declared bounds where there are any."""
        # The test file must hold the same kind of records.
        if one.x.shape[1:] != shape:
            raise BadFile(one.path, f"records of shape {one.x.shape[1:]}", f"need {shape}, as in the data")
        keys = [row.tobytes() + label.tobytes() for row, label in zip(one.x, one.y, strict=True)]
        if classes is None:
            y = scale_to_unit(one.y.reshape(-1, 1), *own.bounds[target])
        else:
            y = torch.tensor(
                [_class_number(classes, str(label), one.path, at) for at, label in enumerate(one.y.tolist())]
            )
        return RecordsFromFile(encoder.encode_array(one.x), y, keys)

    test = None if own.test is None else records_of(arrays.read_arrays(Path(own.test), own.target))
    return _split_for_testing(own, records_of(train_arrays), test, encoder, tuple(read_off))


def _class_number(classes: Sequence[str], name: str, path: Path, record: int | None = None) -> int:
    """Returns the class number for the target of a record in a run's data; raises if the class is not a declared one."""
    if name not in classes:
        where = "its class" if record is None else f"the class of record {record}"
        raise BadFile(path, f"{where} is none of those declared", "declare it, or leave the record out")
    return classes.index(name)


def _refuse_single_class(path: Path, what: str, classes: Sequence[str]) -> None:
    """Raises if there are fewer than two classes."""
    if len(classes) < 2:
        raise BadFile(path, f"only one class in {what!r}", "need two or more to learn to tell them apart")


def mark_held_out(keys: list[bytes], share: float) -> Tensor:
    """Returns a mask of the records in a run's data that are held out for testing; refuses a share that leaves none or
    all.
    """
    is_held_out = torch.from_numpy(choose_held_out(keys, share))
    if bool(is_held_out.all()) or not bool(is_held_out.any()):
        raise ValueError(
            f"held_out={share:g}: of so few records none is held out, or all are; give a test set or another share"
        )
    return is_held_out


def _count_outputs(model: nn.Module, x: Tensor, *, is_of_tokens: bool) -> int:
    """Returns the number of outputs that a given model has for a record of a run's data, or for each token of it, found
    with a record of zeros so that no private record is used.
    """
    # A record of zeros stands for a record, and the model is left in the mode it was in.
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(torch.zeros_like(x[:1], device=device_of(model)))
    except Exception as error:  # a stranger's model may raise anything
        raise Refusal(f"the model does not take the records, of shape {tuple(x.shape[1:])} ({error})") from error
    model.train(training)
    if is_of_tokens and (not isinstance(output, Tensor) or output.dim() != 3):
        raise Refusal("the targets are tokens: the model must give a row of scores for each, (B, tokens, vocabulary)")
    if not is_of_tokens and (not isinstance(output, Tensor) or output.dim() != 2):
        raise Refusal("the model must give a row of numbers for each record, (B, outputs)")
    return int(output.shape[-1])
