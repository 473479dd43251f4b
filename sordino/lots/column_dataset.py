"""Column dataset: records of a mapping from names to columns, such as a tokenizer's `BatchEncoding`.

    encoded = tokenizer(texts, padding=True, return_tensors="pt")
    private.draws({**encoded, "labels": labels}, batch_size=64, epochs=3)

A record is a dict with one value of every column, so a loss takes them by name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch.utils.data import Dataset

from sordino.refusal import Refusal


class ColumnDataset(Dataset[dict[str, Any]]):
    """The records of columns that are as long as one another."""

    def __init__(self, columns: Mapping[str, Any]) -> None:
        self.columns = {name: column for name, column in columns.items() if column is not None}
        self._count = _count_rows(self.columns)

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> dict[str, Any]:
        return {name: column[index] for name, column in self.columns.items()}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Returns several records at once."""
        return [self[index] for index in indices]


def dataset_of_columns(given: Any) -> Any:
    """Returns the records of a mapping of columns as a dataset, and everything else as it is."""
    return ColumnDataset(given) if isinstance(given, Mapping) else given


def _count_rows(columns: Mapping[str, Any]) -> int:
    """Returns how many rows all columns of a column dataset have; raises Refusal if they differ, or if a value is no
    column.
    """
    for name, column in columns.items():
        if isinstance(column, str | bytes) or not hasattr(column, "__len__") or not hasattr(column, "__getitem__"):
            raise Refusal(
                f"a mapping was given, and its {name!r} is a {type(column).__name__}.\n"
                "A mapping is read as columns by name, with one entry for each record.\n"
                "Give columns of one length, or a dataset whose records are dicts."
            )
    lengths = {len(column) for column in columns.values()}
    if len(lengths) != 1:
        raise Refusal(
            "a mapping was given whose columns differ in length, or that has none.\n"
            "A mapping is read as columns by name, with one entry for each record.\n"
            "Give columns of one length."
        )
    return lengths.pop()
