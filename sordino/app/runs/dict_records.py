"""Dict records: what `fit` makes of a dataset whose records are dicts, or of columns by name.

    fit(model, datasets.load_dataset(...)["train"].map(tokenize), epsilon=3.0)      Hugging Face's `datasets`
    fit(model, {**tokenizer(texts, padding=True), "labels": labels}, epsilon=3.0)   a BatchEncoding and labels

The target is the column `labels`, `label`, `target` or `y`. The other columns are what the model is given:

    one column                          model(x)
    token columns, pixel_values         model(input_ids=…, attention_mask=…), by name; of what it returns, the logits
    several columns of single numbers   model(x), where x has one column for each of them
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from sordino.lots.collate import join_records
from sordino.lots.column_dataset import ColumnDataset
from sordino.refusal import Refusal

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
        """Returns what the model says of inputs that are stacked along the second dimension, if there are several."""
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
    """Returns whether a dataset is columns by name, or has records that are dicts."""
    if isinstance(data, Mapping):
        return True
    try:
        return len(data) > 0 and isinstance(data[0], Mapping)
    except (TypeError, KeyError, IndexError):
        return False


def read_dict_records(data: Any) -> tuple[Tensor, Tensor, tuple[str, ...]]:
    """Returns the inputs and targets of a dataset of dicts as tensors, and the names by which a model takes its inputs.

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
