"""Prepares a user's own data for a run, and lists what the claim must name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino.app.data.own.held_out import held_out
from sordino.app.runs.loss_names import LOSSES
from sordino.app.runs.own_file import SHARE, OwnFile
from sordino.app.runs.own_records import read
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
    def of(model: nn.Module, train: Any, test: Any = None) -> GivenData:
        """Creates it from any map-style dataset of pairs."""
        return GivenData(model, tensors(train), None if test is None else tensors(test))


@dataclass(frozen=True, eq=False)
class Own:
    """A user's own records as a run needs them."""

    prepared: Prepared
    not_covered: tuple[str, ...]
    columns: tuple[str, ...] = ()
    """What the numbers of a record are."""
    classes: tuple[str, ...] = ()


def of_file(own: OwnFile, recipe: Recipe, say: Callable[[str], None]) -> Own:
    """Returns the records of a file or a folder, split into training and test records."""
    classifies = recipe.loss not in LOSSES or LOSSES[recipe.loss].classifies
    found, test = read(own, recipe.features, classifies, say, recipe.unit)
    # Without a test file, records are held out by a hash of themselves, so one record never moves another.
    units, told = found.units, TESTED
    if test is None:
        apart, told = _apart(found.keys, own.held_out), HELD_OUT
        train, tested = (found.x[~apart], found.y[~apart]), (found.x[apart], found.y[apart])
        units = None if units is None else units[~apart]
    else:
        train, tested = (found.x, found.y), (test.x, test.y)
    prepared = Prepared(TensorDataset(*train), TensorDataset(*tested), found.outputs, units, unbounded=found.unbounded)
    return Own(prepared, (*found.not_covered, told), found.titles, found.classes or ())


def of_memory(given: GivenData) -> Own:
    """Returns a user's own model and dataset, split into training and test records."""
    train = given.train
    if given.test is None:
        keys = [x.numpy().tobytes() + y.numpy().tobytes() for x, y in zip(*train, strict=True)]
        apart, told = _apart(keys, SHARE), HELD_OUT
        train, test = (train[0][~apart], train[1][~apart]), (train[0][apart], train[1][apart])
    else:
        test, told = given.test, TESTED
    # Labels are checked against the number of outputs here, because an index beyond it would fail in the middle of
    # training.
    outputs = _outputs(given.model, train[0])
    for _, y in (train, test):
        if not y.is_floating_point() and bool(((y < 0) | (y >= outputs)).any()):
            raise Refusal(
                f"a label beyond the model's {outputs} outputs: need 0 to {outputs - 1}; mend labels or model"
            )
    return Own(Prepared(TensorDataset(*train), TensorDataset(*test), outputs, network=given.model), (told,))


def tensors(data: Any) -> tuple[Tensor, Tensor]:
    """Returns the records and the targets of a dataset of pairs, as tensors in memory."""
    # Tensors and arrays are taken as they are; any other dataset is read record by record.
    if isinstance(data, TensorDataset):
        found: tuple[Any, ...] = data.tensors
    elif (
        isinstance(data, tuple | list) and len(data) == 2 and all(isinstance(one, Tensor | np.ndarray) for one in data)
    ):
        found = tuple(torch.as_tensor(one) for one in data)
    else:
        try:
            pairs = [data[at] for at in range(len(data))]
            found = tuple(torch.stack([torch.as_tensor(one) for one in column]) for column in zip(*pairs, strict=True))
        except (TypeError, ValueError, KeyError, RuntimeError, IndexError) as error:
            raise Refusal(
                f"a {type(data).__name__} was given: need a map-style dataset of pairs (x, y), all x of one shape ({error})"
            ) from error
    # Targets become class numbers, or one column of floating-point numbers.
    if len(found) != 2 or len(found[0]) != len(found[1]) or not len(found[1]):
        raise Refusal(f"a dataset with {len(found)} columns: need records and their targets, x and y, one of each")
    x, y = found
    y = y if y.is_floating_point() else y.long()
    return x, (y.unsqueeze(1) if y.is_floating_point() and y.dim() == 1 else y)


def _apart(keys: list[bytes], share: float) -> Tensor:
    """Returns a mask of the records that are held out; refuses a share that leaves none or all."""
    apart = torch.from_numpy(held_out(keys, share))
    if bool(apart.all()) or not bool(apart.any()):
        raise ValueError(
            f"held_out={share:g}: of so few records none is held out, or all are; give a test set or another share"
        )
    return apart


def _outputs(model: nn.Module, x: Tensor) -> int:
    """Returns the number of outputs of a model, found with a record of zeros so that no private record is used."""
    training = model.training
    model.eval()
    try:
        with torch.no_grad():
            found = model(torch.zeros_like(x[:1]))
    except Exception as error:  # a stranger's model may raise anything
        raise Refusal(f"the model does not take the records, of shape {tuple(x.shape[1:])} ({error})") from error
    model.train(training)
    if not isinstance(found, Tensor) or found.dim() != 2:
        raise Refusal("the model must give a row of numbers for each record, (B, outputs)")
    return int(found.shape[1])
