"""Prepares a user's own data for a run, and lists what the claim must name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.app.data.own.held_out import choose_held_out
from sordino.app.runs.loss_names import LOSSES
from sordino.app.runs.own_file import HELD_OUT_SHARE, OwnFile
from sordino.app.runs.own_records import read_own_file
from sordino.app.runs.prepared import Prepared
from sordino.app.runs.recipe import Recipe
from sordino.refusal import Refusal

HELD_OUT = "accuracy and loss on the records held out for testing, told without noise"
TESTED = "accuracy and loss on the test records, told without noise"


GIVEN = "given"
"""The dataset of a recipe whose records were given in memory."""


@dataclass(frozen=True, eq=False)
class GivenData:
    """A model and records that the user has in memory."""

    model: nn.Module
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor] | None = None

    @staticmethod
    def from_datasets(model: nn.Module, train: Any, test: Any = None) -> GivenData:
        """Creates it from any map-style dataset of pairs."""
        return GivenData(model, tensors_of(train), None if test is None else tensors_of(test))


@dataclass(frozen=True, eq=False)
class OwnRunData:
    """A user's own records as a run needs them."""

    prepared: Prepared
    not_covered: tuple[str, ...]
    columns: tuple[str, ...] = ()
    """What the numbers of a record are."""
    classes: tuple[str, ...] = ()


def load_own_file(own: OwnFile, recipe: Recipe, say: Callable[[str], None]) -> OwnRunData:
    """Returns the records of a file or a folder, split into training and test records."""
    classifies = recipe.loss not in LOSSES or LOSSES[recipe.loss].classifies
    records, test = read_own_file(own, recipe.features, classifies, say, recipe.unit)
    # Without a test file, records are held out by a hash of themselves, so one record never moves another.
    units, test_disclosure = records.units, TESTED
    if test is None:
        is_held_out, test_disclosure = _mark_held_out(records.keys, own.held_out), HELD_OUT
        train, test_pair = (
            (records.x[~is_held_out], records.y[~is_held_out]),
            (records.x[is_held_out], records.y[is_held_out]),
        )
        units = None if units is None else units[~is_held_out]
    else:
        train, test_pair = (records.x, records.y), (test.x, test.y)
    prepared = Prepared(
        TensorDataset(*train), TensorDataset(*test_pair), records.outputs, units, unbounded=records.unbounded
    )
    return OwnRunData(prepared, (*records.not_covered, test_disclosure), records.titles, records.classes or ())


def load_given_data(given: GivenData) -> OwnRunData:
    """Returns a user's own model and dataset, split into training and test records."""
    train = given.train
    if given.test is None:
        keys = [x.numpy().tobytes() + y.numpy().tobytes() for x, y in zip(*train, strict=True)]
        is_held_out, test_disclosure = _mark_held_out(keys, HELD_OUT_SHARE), HELD_OUT
        train, test = (train[0][~is_held_out], train[1][~is_held_out]), (train[0][is_held_out], train[1][is_held_out])
    else:
        test, test_disclosure = given.test, TESTED
    # Labels are checked against the number of outputs here, because an index beyond it would fail in the middle of
    # training.
    outputs = _count_outputs(given.model, train[0])
    for _, y in (train, test):
        if not y.is_floating_point() and bool(((y < 0) | (y >= outputs)).any()):
            raise Refusal(
                f"a label beyond the model's {outputs} outputs: need 0 to {outputs - 1}; mend labels or model"
            )
    return OwnRunData(
        Prepared(TensorDataset(*train), TensorDataset(*test), outputs, network=given.model), (test_disclosure,)
    )


def tensors_of(data: Any) -> tuple[Tensor, Tensor]:
    """Returns the records and the targets of a dataset of pairs, as tensors in memory."""
    # Tensors and arrays are taken as they are; any other dataset is read record by record.
    if isinstance(data, TensorDataset):
        columns: tuple[Any, ...] = data.tensors
    elif (
        isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(one, Tensor | np.ndarray) for one in data)
    ):
        columns = tuple(torch.as_tensor(one) for one in data)
    else:
        try:
            pairs = [data[at] for at in range(len(data))]
            columns = tuple(
                torch.stack([torch.as_tensor(one) for one in column]) for column in zip(*pairs, strict=True)
            )
        except (TypeError, ValueError, KeyError, RuntimeError, IndexError) as error:
            raise Refusal(
                f"a {type(data).__name__} was given: need a map-style dataset of pairs (x, y), all x of one shape ({error})"
            ) from error
    # Targets become class numbers, or one column of floating-point numbers.
    if len(columns) != 2 or len(columns[0]) != len(columns[1]) or not len(columns[1]):
        raise Refusal(f"a dataset with {len(columns)} columns: need records and their targets, x and y, one of each")
    x, y = columns
    y = y if y.is_floating_point() else y.long()
    return x, (y.unsqueeze(1) if y.is_floating_point() and y.dim() == 1 else y)


def _mark_held_out(keys: list[bytes], share: float) -> Tensor:
    """Returns a mask of the records that are held out; refuses a share that leaves none or all."""
    is_held_out = torch.from_numpy(choose_held_out(keys, share))
    if bool(is_held_out.all()) or not bool(is_held_out.any()):
        raise ValueError(
            f"held_out={share:g}: of so few records none is held out, or all are; give a test set or another share"
        )
    return is_held_out


def _count_outputs(model: nn.Module, x: Tensor) -> int:
    """Returns the number of outputs of a model, found with a record of zeros so that no private record is used."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            output = model(torch.zeros_like(x[:1]))
    except Exception as error:  # a stranger's model may raise anything
        raise Refusal(f"the model does not take the records, of shape {tuple(x.shape[1:])} ({error})") from error
    model.train(training)
    if not isinstance(output, Tensor) or output.dim() != 2:
        raise Refusal("the model must give a row of numbers for each record, (B, outputs)")
    return int(output.shape[1])
