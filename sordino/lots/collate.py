"""Joins records to a batch where the user gave no collate function.

It is torch's default_collate, with messages for what that cannot join.

Records that are dicts are joined key by key: numbers, tensors and arrays as torch does it, lists of numbers as rows,
None where all have None. That is how tokenised text comes from Hugging Face's libraries.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import default_collate

from sordino.refusal import Refusal


def join_records(records: list[Any]) -> Any:
    """Returns the batch of these records, in place of a user's collate function; raises Refusal where they cannot be
    joined.
    """
    if records and all(isinstance(record, Mapping) for record in records):
        # Records that are dicts are joined key by key.
        keys = list(records[0])
        if any(record.keys() != records[0].keys() for record in records):
            raise Refusal(
                "the records of a dataset have different keys.\n"
                "Records are joined key by key.\n"
                "Give each record the same keys, or give `collate`."
            )
        return {key: _join_column(key, [record[key] for record in records]) for key in keys}
    # torch's own rule for everything else. It refuses what has no common shape.
    try:
        return default_collate(records)
    except (TypeError, RuntimeError) as error:  # its words may hold sizes; the kind is enough
        raise Refusal(
            f"the records cannot be joined to a batch by torch's default_collate ({type(error).__name__}).\n"
            "It joins tensors or numbers of one shape.\n"
            "Give `collate`, such as a tokenizer's padding."
        ) from None


def _join_column(key: Any, values: list[Any]) -> Any:
    """Returns what collate makes of one key of all records of a batch."""
    # A key that no record fills is passed on; None in some records alone is refused below.
    if all(value is None for value in values):
        return None
    rows = [_as_tensor_if_numeric(value) for value in values]
    if all(isinstance(row, Tensor) for row in rows):
        # Padding needs a mask that the loss respects, so it is left to the user.
        if len({row.shape for row in rows}) > 1:
            raise Refusal(
                f"{key!r} differs in shape from record to record.\n"
                "A batch has one shape for all of its records.\n"
                "Give `collate` to pad it, such as transformers.DataCollatorWithPadding(tokenizer), with a mask that "
                "the loss respects."
            )
        return torch.stack(rows)
    # Text and missing values cannot become tensors.
    if any(isinstance(value, str | bytes) or value is None for value in values):
        kind = "None in some records" if any(value is None for value in values) else type(values[0]).__name__
        raise Refusal(
            f"{key!r} is {kind}.\n"
            "A batch holds a number or a tensor of every record.\n"
            "Tokenise or drop the column before training."
        )
    return join_records(values)


def _as_tensor_if_numeric(value: Any) -> Any:
    """Returns a value for collate to join: a tensor if it is a number, an array or a list of numbers; otherwise the
    value as it is.
    """
    # A list of numbers becomes a row; a list of anything else is left to torch.
    if isinstance(value, list | tuple) and not any(isinstance(one, Tensor | str | bytes | Mapping) for one in value):
        try:
            return torch.as_tensor(value)
        except (ValueError, TypeError, RuntimeError):
            return value
    # Numbers get the same kinds as torch's default_collate gives them.
    if isinstance(value, np.ndarray | np.generic):
        return torch.as_tensor(value)
    if isinstance(value, float):
        return torch.tensor(value, dtype=torch.float64)  # as default_collate does
    if isinstance(value, bool | int):
        return torch.tensor(value)
    return value
