"""Data given in memory: a model and records that a program hands to `fit`, as tensors from any usual kind of dataset.

    GivenData.from_datasets(model, train)

Records in memory are pairs (x, y), or dicts, as those of Hugging Face's `datasets`, or columns by name, as a BatchEncoding
with labels. Of dicts and columns the target is `labels`, `label`, `target` or `y`. The others are what the model is given:

    one column                          model(x)
    token columns, pixel_values         model(input_ids=…, attention_mask=…), by name; of what it returns, the logits
    several columns of single numbers   model(x), where x has one column for each of them
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from sordino import validate
from sordino.lots.collate import join_records
from sordino.lots.column_dataset import ColumnDataset
from sordino.refusal import Refusal

GIVEN = "given"
"""The dataset of a recipe whose records were given in memory."""


@dataclass(frozen=True, eq=False)
class GivenData:
    """A model and records that the user has in memory."""

    model: nn.Module
    train: tuple[Tensor, Tensor]
    test: tuple[Tensor, Tensor] | None = None
    source: Any = None
    """The dataset that the records were given in, by which a second run on it is recognised."""
    validation: tuple[Tensor, Tensor] | None = None
    """Public records by whose loss the model is kept."""
    patience: int | None = None
    """Evaluations in a row without a lower loss on them after which the run takes no more steps."""

    @staticmethod
    def from_datasets(
        model: nn.Module, train: Any, test: Any = None, validation: Any = None, patience: int | None = None
    ) -> GivenData:
        """Creates the given data from any map-style datasets in memory, of pairs or of dicts, or from columns by name."""
        if validation is not None and validation is train:
            raise ValueError(
                "public_validation: these are the records that are trained on; give others, that are public"
            )
        if patience is not None and validation is None:
            raise ValueError("patience: needs public validation records to go by; give public_validation")
        if patience is not None:
            validate.count("patience", patience)
        train_tensors, names = _read_dataset(train)
        test_tensors = None if test is None else _read_dataset(test)[0]
        validation_tensors = None if validation is None else _read_dataset(validation)[0]
        taking_tensors = NamedInputs(model, names) if names else model
        return GivenData(taking_tensors, train_tensors, test_tensors, train, validation_tensors, patience)


def _read_dataset(data: Any) -> tuple[tuple[Tensor, Tensor], tuple[str, ...]]:
    """Returns the records and targets of a dataset that was given in memory, and the names by which the model takes its
    inputs.
    """
    if has_dict_records(data):
        x, y, names = read_dict_records(data)
        return tensors_of(TensorDataset(x, y)), names
    return tensors_of(data), ()


def tensors_of(data: Any) -> tuple[Tensor, Tensor]:
    """Returns the records and the targets of a dataset of pairs that was given in memory, as tensors."""
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
    x, y = (column.cpu() for column in columns)  # lots are copied to wherever the model is
    y = y if y.is_floating_point() else y.long()
    return x, (y.unsqueeze(1) if y.is_floating_point() and y.dim() == 1 else y)


TARGETS = ("labels", "label", "target", "y")
"""Columns that are taken for the target, in this order."""
_TOKENS = ("input_ids", "attention_mask", "token_type_ids")
_BY_NAME = (*_TOKENS, "pixel_values")


class NamedInputs(nn.Module):
    """A model that is called by the names of its inputs, as one that takes a single tensor.

    Its state dict is that of the model, so a saved run does not show that it was wrapped.
    """

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.model, self.names = model, names

    def forward(self, x: Tensor) -> Tensor:
        """Calls the given model by the names of its inputs, which are stacked along the second dimension if there are
        several, and returns its logits.
        """
        # Several inputs are stacked along the second dimension and are taken apart here.
        given = {self.names[0]: x} if len(self.names) == 1 else {name: x[:, k] for k, name in enumerate(self.names)}
        found = self.model(**given)
        logits: Tensor = found if isinstance(found, Tensor) else found["logits"]
        return logits

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the state of the model itself."""
        return self.model.state_dict(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Loads a state of the model itself."""
        return self.model.load_state_dict(*args, **kwargs)


def has_dict_records(data: Any) -> bool:
    """Returns whether a dataset given in memory is columns by name, or has records that are dicts."""
    if isinstance(data, Mapping):
        return True
    try:
        return len(data) > 0 and isinstance(data[0], Mapping)
    except (TypeError, KeyError, IndexError):
        return False


def read_dict_records(data: Any) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Returns the inputs and targets of a dataset of dicts given in memory as tensors, and the names by which the model
    takes its inputs.

    No names mean that the model is given the tensor as it is.

    Raises:
        Refusal: if there is no target, or if the other columns do not make one input.

    """
    # Read record by record, so that columns and records of dicts are the same thing from here on.
    dataset = ColumnDataset(data) if isinstance(data, Mapping) else data
    columns: dict[str, Any] = join_records([dataset[at] for at in range(len(dataset))])
    columns = {name: column for name, column in columns.items() if column is not None}
    listed = ", ".join(columns)
    # Find the target by its name.
    target = next((name for name in TARGETS if name in columns), None)
    if target is None:
        raise Refusal(
            f"records with the fields {listed}: none of them is known to be the target.\n"
            f"Rename the target to {TARGETS[0]!r}, or give pairs (x, y)."
        )
    y = columns.pop(target)
    # The rest are the inputs of the model.
    names = tuple(columns)
    # Token fields of one shape go to the model by their names.
    if names and all(name in _BY_NAME for name in names) and len({column.shape for column in columns.values()}) == 1:
        ordered = tuple(sorted(names, key=_BY_NAME.index))
        stacked = [columns[name] for name in ordered]
        return (stacked[0] if len(stacked) == 1 else torch.stack(stacked, dim=1)), y, ordered
    if len(names) == 1:
        return columns[names[0]], y, ()
    # Single numbers are the columns of one row.
    if names and all(column.dim() == 1 for column in columns.values()):
        return torch.stack([column.float() for column in columns.values()], dim=1), y, ()
    raise Refusal(
        f"records with the fields {listed}: beside {target!r} they do not make one input for a model.\n"
        f"`fit` takes one field, several single numbers, or token fields ({', '.join(_TOKENS)}).\n"
        "Remove the others, or train with sd.Private, whose loss takes every field by name."
    )
